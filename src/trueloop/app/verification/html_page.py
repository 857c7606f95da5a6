"""Render evidence as a self-contained HTML page without scripts."""

from collections import Counter
from collections.abc import Sequence
from importlib.resources import files

from trueloop.core.formatting import format_count, format_duration
from trueloop.core.html import Markup, element, render_document, section
from trueloop.verification.evidence import Evidence, Verdict
from trueloop.verification.plots import render_chart

TONES = {Verdict.HOLDS: "good", Verdict.BROKEN: "error", Verdict.NOT_JUDGED: "warning", Verdict.NOT_APPLICABLE: "soft"}
STYLE = """
rect.amount, rect.on { fill: var(--loss); } rect.off { fill: var(--shade); } rect.bad { fill: var(--error); }
article.finding > h3, article.finding > p { color: var(--ink); }
figure svg.matrix { max-width: 24rem; }
article.finding figure { margin-top: .75rem; max-width: 40rem; }
"""


def headline(evidence: Sequence[Evidence]) -> str:
    """Summarize the verdicts in one line: "2 broken, 11 hold, 4 not applicable"."""
    counts = Counter(each.verdict for each in evidence)
    labels = ((Verdict.BROKEN, "broken"), (Verdict.NOT_JUDGED, "not judged"), (Verdict.HOLDS, "hold"))
    parts = [f"{counts[verdict]} {label}" for verdict, label in labels if counts[verdict]]
    if counts[Verdict.NOT_APPLICABLE]:
        parts.append(f"{counts[Verdict.NOT_APPLICABLE]} not applicable")
    return ", ".join(parts) or "no proof was run"


def to_html(evidence: Sequence[Evidence], spec: str) -> str:
    """Render a page of evidence.

    Args:
        evidence: evidence of all proofs.
        spec: name of the target.
    """
    style = files("trueloop.reporting").joinpath("page.css").read_text(encoding="utf-8")
    failed = any(not each.ok for each in evidence)
    header = element(
        "header",
        element("p", f"trueloop verify {spec}", class_="kicker"),
        element("h1", headline(evidence), class_="error" if failed else "good"),
        element(
            "p",
            f"{format_count(len(evidence), 'proof')} in {format_duration(sum(each.seconds for each in evidence))}.",
            class_="soft",
        ),
    )
    order = (Verdict.BROKEN, Verdict.NOT_JUDGED, Verdict.HOLDS)
    applicable = [each for each in evidence if each.verdict in order]
    not_applicable = [each for each in evidence if each.verdict not in order]
    articles = map(_article, sorted(applicable, key=lambda each: order.index(each.verdict)))
    parts = [header, section("Proofs", *articles) if applicable else Markup()]
    if not_applicable:
        items = (element("li", element("strong", each.title), f": {each.message}") for each in not_applicable)
        parts.append(section("Not applicable", element("ul", *items)))
    return render_document(f"trueloop verify {spec}: {headline(evidence)}", style + STYLE, *parts)


def _article(evidence: Evidence) -> Markup:
    tone = TONES[evidence.verdict]
    return element(
        "article",
        element("h3", element("span", str(evidence.verdict), class_=f"pill {tone}"), " ", evidence.title),
        element("p", evidence.message),
        *(element("p", remark, class_="soft") for remark in evidence.notes),
        *([element("p", element("strong", "Fix: "), evidence.fix)] if evidence.fix else []),
        *map(render_chart, evidence.charts),
        element("p", element("code", evidence.proof), f", {format_duration(evidence.seconds)}", class_="where"),
        class_=f"finding {tone}",
        id=evidence.proof,
    )
