"""Many runs: started, watched, shown, on this machine or on a cluster."""
