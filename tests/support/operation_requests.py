"""A valid request of each operation of the protocol."""

from support.documents import request

ONE = "<qid>{}</qid>"
MESSAGE = ONE + "<mid>1</mid>"
PAYLOADS = "<messages><message><payload>x</payload></message></messages>"
REQUESTS: dict[str, tuple[str, dict[str, str | int]]] = {
    "list-queues": ("", {}),
    "new-queue": (ONE + '<options dead-letter="{}" max-receives="3"/>', {}),
    "set-queue": (ONE + '<options dead-letter="{}" max-receives="3"/>', {}),
    "get-queue": (ONE, {}),
    "pause-queue": (ONE, {}),
    "resume-queue": (ONE, {}),
    "redrive-messages": (ONE + "<queues><queue>{}</queue></queues>", {}),
    "delete-queue": (ONE, {"force": "yes"}),
    "purge-queue": (ONE, {}),
    "queue-stats": (ONE, {}),
    "server-stats": ("", {}),
    "push-message": (ONE + "<payload>x</payload>", {}),
    "receive-message": (ONE, {}),
    "delete-message": (MESSAGE, {}),
    "release-message": (MESSAGE, {}),
    "reject-message": (MESSAGE, {}),
    "extend-message": (MESSAGE, {}),
    "subscribe": (ONE, {}),
    "unsubscribe": ("", {"subscription": "s"}),
    "copy-message": (MESSAGE + "<queues><queue>{}</queue></queues>", {}),
    "claim-messages": (ONE + "<consumer>c</consumer>", {"seq": 1}),
    "get-claim": (ONE + "<consumer>c</consumer>", {"seq": 1}),
    "ack-claim": (ONE + "<consumer>c</consumer>", {"seq": 1}),
    "release-claim": (ONE + "<consumer>c</consumer>", {"seq": 1}),
    "list-claims": (ONE, {}),
    "stage-messages": (ONE + "<producer>p</producer>" + PAYLOADS, {"batch": 0, "part": 0, "attempt": 0}),
    "publish-staged": (ONE + "<producer>p</producer>", {"batch": 0}),
    "list-messages": (ONE, {}),
    "get-message": (MESSAGE, {}),
    "authenticate": ("<token>nobody-has-this</token>", {}),
    "ping": ("", {}),
}
"""A request of each operation; {} stands for the queue."""


def document(op: str, qid: str) -> str:
    """The request of an operation about a queue."""
    body, attributes = REQUESTS[op]
    return request(op, body.replace("{}", qid), **attributes)
