"""One switch as ibswinfo prints it, whole, with a missing value, with values that are none."""

from tests.expected._expected import Expected

_ROWS = {"ports": 1, "link_signal": 1}
_HOW = "grep -c '^GUID ' is 1: one switch, one temperature sensor (grep -c '^QSFP' is 0)"
EXPECTED = {
    "treydock_test1.out": Expected(kind="ibswinfo", rows=_ROWS, how=_HOW),
    "treydock_test1-missing.out": Expected(kind="ibswinfo", rows=_ROWS, how=_HOW),
    "treydock_test-err1.out": Expected(
        kind="ibswinfo",
        rows=_ROWS,
        rejects=1,
        reason="'foo' is no number",
        how=f"{_HOW}; grep -n foo: the power of PSU0",
    ),
    "treydock_test-err3.out": Expected(
        kind="ibswinfo",
        rows=_ROWS,
        rejects=1,
        reason="'foo' is no number",
        how=f"{_HOW}; grep -n foo: the speed of fan 1",
    ),
}
