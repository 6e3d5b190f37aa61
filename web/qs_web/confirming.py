"""Asks before something is destroyed, or much is moved: a page with the number of messages, and the queue's name to
type if they are many."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import Response

from .forms import Form
from .visit import Visit

MANY = 1000
"""Messages of a queue that are destroyed only after the queue's name has been typed."""


@dataclass(frozen=True, slots=True)
class Doomed:
    """A queue whose messages are about to be destroyed. count: how many, None if the storage cannot tell."""

    qid: str
    count: int | None

    @property
    def needs_name(self) -> bool:
        """Tells whether the name has to be typed."""
        return self.count is None or self.count > MANY


def is_confirmed(form: Form, doomed: Sequence[Doomed] = ()) -> bool:
    """Tells whether the form comes from the page that asks, and has the names that must be typed."""
    return form.one("sure") == "yes" and all(
        form.one(f"typed-{number}").strip() == queue.qid.strip()
        for number, queue in enumerate(doomed)
        if queue.needs_name
    )


def ask(
    visit: Visit,
    form: Form,
    *,
    title: str,
    text: str,
    button: str,
    back: str,
    doomed: Sequence[Doomed] = (),
    destroys: bool = True,
) -> Response:
    """Answers with the page that asks. It sends the same form again. title: the question; text: what happens; back: the
    address of the page to return to; destroys: what happens cannot be undone."""
    wrong = form.one("sure") == "yes"
    fields = [pair for pair in form.flat("sure") if not pair[0].startswith("typed-")]
    return visit.page(
        "confirm",
        409 if wrong else 200,
        action=str(visit.request.url.path) + (f"?{visit.request.url.query}" if visit.request.url.query else ""),
        fields=fields,
        title=title,
        text=text,
        button=button,
        back=back,
        doomed=doomed,
        destroys=destroys,
        wrong=wrong,
    )
