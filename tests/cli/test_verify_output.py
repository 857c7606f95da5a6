"""What is printed, line by line."""

from trueloop.cli.verify_output import VerifyPrinter
from trueloop.verification.evidence import Curve, Evidence, Verdict

FALLING = Evidence(
    verdict=Verdict.HOLDS,
    proof="loss-falls",
    message="It fell.\x1b[31m",
    notes=("By much.",),
    charts=(Curve(title="Loss", lines={"loss": [8.0, 4.0, 1.0]}),),
    seconds=2.0,
)


def test_a_proof_is_a_line_with_its_curve(capsys):
    printer = VerifyPrinter()
    printer.proof_finished(FALLING)
    printer.print_summary([FALLING])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    line, curve, remark, total = out.splitlines()
    assert line.startswith("✓ loss-falls                It fell.")
    assert curve.strip() == "█▄▁"
    assert remark.strip() == "By much."
    assert total == "1 hold, in 2.0 s"


def test_quiet_prints_nothing(capsys):
    printer = VerifyPrinter(quiet=True)
    printer.proof_finished(FALLING)
    printer.print_summary([FALLING])
    assert capsys.readouterr() == ("", "")
