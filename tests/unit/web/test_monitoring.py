"""Which repetitions a pattern may ask for."""

import pytest

from qs_web.monitoring import most_copies


@pytest.mark.parametrize(("pattern", "copies"), [
    ("", 1), (".*", 1), ("a{3}", 3), ("(a{2}){3,5}", 30), ("a{,7}b{0}", 7), (r"\{99\}[0-9]99", 1), (r"\\{99}", 99),
    ("(?x)a{ 9 # nine\n 9 }", 99), (r"\p{L}{2}", 2), ("a{3", 3),
])  # fmt: skip
def test_most_copies_multiplies_counts(pattern: str, copies: int) -> None:
    """Counts are multiplied, wherever they stand; escaped braces and digits elsewhere are none."""
    assert most_copies(pattern) == copies
