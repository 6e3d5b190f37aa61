"""Implements the operations on claims and staged batches, for consumers that replay and producers that retry.

Each operation can be repeated without harm, for example after its answer was lost. Names of consumers and producers are
separate for each principal.
"""

from functools import partial

import qs_schemas as wire
from qs_schemas import Message, errors
from qs_serving.access.caller import NotAllowedError
from qs_storage.engine import Batches, Claim, Claims, Draft, UnsupportedError
from qs_storage.names import owned_name, split_name

from ..broker.jobs import Pause
from ..broker.subscriber import entry_of
from .service import Answer, BadRequestError, Service, duration, in_room, qid_of

_SUMMED = 500
"""Messages of a claim whose ids are summed up in one unit of work."""
_IN_BULK = 20
"""Messages of a claim or a batch that are one unit of work: see `Service.spent`."""


def claim_messages(service: Service, request: wire.ClaimMessages) -> Message:
    consumer, seq = _consumer(service, request), request.seq or 0
    claims = _claims(service, request)
    # One step of some 30 ms at most: a claim is not divided, and its record has all ids.
    claim = claims.claim(consumer, seq, request.max or claims.most, request.max_bytes, request.upto)
    service.spent += claim.count // _IN_BULK
    return wire.ClaimMessages(request.qid, request.consumer, claim=_to_wire(claim, service.owner))


def get_claim(service: Service, request: wire.GetClaim) -> Message:
    consumer, seq = _consumer(service, request), request.seq or 0
    part, parts = request.part or 0, request.parts or 1
    if part >= parts:
        raise BadRequestError(f"there is no part {part} of {parts}: they are counted from 0")
    claims = _claims(service, request)
    found = claims.part(consumer, seq, (part, parts), service.list_length, service.document)
    service.spent += service.list_length if found is None else len(found)
    if found is None:
        raise BadRequestError(
            f"part {part} of {parts} of claim {seq} is too much for one answer ({service.list_length} messages, "
            f"{service.document} bytes of payload): ask for more 'parts'"
        )
    return wire.GetClaim(request.qid, messages=list(map(entry_of, found)))


def ack_claim(service: Service, request: wire.AckClaim) -> Answer:
    """Acknowledges the consumer's open claims one after the other, with pauses in between: each claim is acknowledged
    in one step, and the number of all their messages has no bound."""
    consumer, seq = _consumer(service, request), request.seq or 0
    for number in (*_claims(service, request).open_before(consumer, seq), seq):
        if service.turn_is_over:
            yield Pause()
        count = yield from in_room(lambda number=number: _claims(service, request).acknowledge(consumer, number))  # type: ignore[misc]
        service.spent += count // _IN_BULK
    return wire.AckClaim(request.qid, request.consumer)


def release_claim(service: Service, request: wire.ReleaseClaim) -> Message:
    owner, own = request.owner, service.owner
    if owner is None:
        owner = own
    elif owner != (own or "") and not service.is_admin:
        raise NotAllowedError(errors.FORBIDDEN, f"to release a claim of {owner!r} needs the right 'admin'")
    consumer = owned_name(owner or None, request.consumer or "")
    count = _claims(service, request).release(consumer, request.seq or 0)
    service.spent += count // _IN_BULK
    return wire.ReleaseClaim(request.qid, request.consumer, count=count)


def list_claims(service: Service, request: wire.ListClaims) -> Answer:
    """Lists the client's own claims, or for an admin the claims of all principals. Pauses between claims, because each
    has a checksum of its ids, up to 100,000 of them."""
    own, everybody = service.owner, service.is_admin
    listed: list[wire.Claim] = []
    for found in _claims(service, request).all():
        claim = _to_wire(found, own)
        if claim.owner is None or everybody:
            listed.append(claim)
        service.spent += 1 + found.count // _SUMMED
        if service.turn_is_over:
            yield Pause()
    return wire.ListClaims(request.qid, claims=listed)


def stage_messages(service: Service, request: wire.StageMessages) -> Message | Answer:
    drafts: list[Draft] = []
    for given in request.messages:
        if given.delay is not None or given.key is not None or given.unique:
            raise BadRequestError("a staged message has neither a 'delay' nor a 'key', and is not 'unique'")
        drafts.append(
            Draft(
                given.payload.encode() if isinstance(given.payload, str) else given.payload,
                priority=given.priority or 0,
                expires=duration(given.expires),
                group=given.group or "",
                headers=tuple(given.headers.items()),
            )
        )
    if service.storage.queue(qid_of(request)).options.schema:
        return _stage_checked(service, request, drafts)
    return _stage(service, request, drafts)


def _stage_checked(service: Service, request: wire.StageMessages, drafts: list[Draft]) -> Answer:
    options = partial(service.storage.options, qid_of(request))
    yield from service.door.checked(qid_of(request), options, [draft.payload for draft in drafts])
    return (yield from in_room(lambda: _stage(service, request, drafts)))


def _stage(service: Service, request: wire.StageMessages, drafts: list[Draft]) -> Message:
    name = (request.batch or 0, request.part or 0, request.attempt or 0)
    _batches(service, request).stage(_producer(service, request), name, drafts)
    return wire.StageMessages(request.qid, request.producer, count=len(drafts))


def publish_staged(service: Service, request: wire.PublishStaged) -> Message:
    parts = [(part.number, part.attempt) for part in request.chosen]
    if len({number for number, _ in parts}) < len(parts):
        raise BadRequestError("a part is published with one of its attempts, and here a part is named twice")
    count = _batches(service, request).publish(_producer(service, request), request.batch or 0, parts)
    service.spent += count // _IN_BULK
    return wire.PublishStaged(request.qid, request.producer)


def _claims(service: Service, request: Message) -> Claims:
    found = service.storage.queue(qid_of(request)).claims
    if found is None:
        raise _only_in_the_journal(service, qid_of(request), "has no claims")
    return found


def _batches(service: Service, request: Message) -> Batches:
    found = service.storage.queue(qid_of(request)).batches
    if found is None:
        raise _only_in_the_journal(service, qid_of(request), "stages no batches")
    return found


def _only_in_the_journal(service: Service, qid: str, lack: str) -> UnsupportedError:
    storage = service.storage.queue(qid).options.storage
    return UnsupportedError(
        f"queue {qid!r} has the storage {storage!r}, which {lack}: only queues of the storage 'journal' can. Make one "
        "(qs new --storage journal), or stop the server and change this one (queue-journal.py convert)"
    )


def _to_wire(claim: Claim, own: str | None) -> wire.Claim:
    """Describes a claim for the answer to a client. The answer names the owner only of another principal's claim. own:
    the client's principal, None for a client without one."""
    owner, consumer = split_name(claim.consumer)
    return wire.Claim(
        claim.seq,
        claim.count,
        claim.bytes,
        claim.first,
        claim.last,
        claim.checksum,
        consumer,
        claim.since,
        owner=None if owner == own else owner or "",
    )


def _consumer(service: Service, request: wire.ClaimMessages | wire.GetClaim | wire.AckClaim) -> str:
    return service.owned(request.consumer or "")


def _producer(service: Service, request: wire.StageMessages | wire.PublishStaged) -> str:
    return service.owned(request.producer or "")
