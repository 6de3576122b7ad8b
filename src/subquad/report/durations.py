"""Durations as people read them."""


def duration(seconds: float, digits: int = 1) -> str:
    """Hours and minutes, minutes and seconds, or seconds with so many digits behind the point."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.{digits}f} s"
