"""Commands in a locale whose encoding is ASCII."""

import os
import subprocess
import sys

import pytest
from runs import ROOT


@pytest.mark.slow
def test_files_are_utf_8_in_any_locale_and_output_has_question_marks_for_what_it_cannot_show(tmp_path):
    """pyproject.toml and the table have letters outside of ASCII."""
    command = [sys.executable, "scripts/reproduce.py", "table=primal_dual/9", "rows=[Epilepsy]", "run=false"]
    places = {"SUBQUAD_OUTPUTS": str(tmp_path), "SUBQUAD_DATA": str(tmp_path)}
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | places | locale, capture_output=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert b"93.71?1.23" in done.stdout
