"""The options of the data source, and the errors for others."""

import pytest

from qs_pipeline.errors import BadOptionError
from qs_pipeline.options import FIRST_CONTACT, RETRY, Options, consumer_of, parse_options


def test_parse_options_in_any_case() -> None:
    """Names are read in any case, as Spark may hand them over in lower case; values with white space around."""
    given = {
        "QUEUE": " orders ", "host": "h", "Port": "1", "consumer": "c", "mode": "Consume", "maxmessagespertrigger": "5",
        "MAXBYTESPERTRIGGER": "6", "numpartitions": "7", "failOnDataLoss": "FALSE", "bodytype": "String",
        "producer": "p", "txnappid": "a", "txnversion": "0", "retryseconds": "1.5",
    }  # fmt: skip
    given |= {"TLS": "true", "ca": "ca.pem", "cert": "c.pem", "key": "c.key", "tokenfile": " t ", "TlsInsecure": "true"}
    secure = (True, "ca.pem", "c.pem", "c.key", "t", True)
    assert parse_options(given) == Options(
        "orders", "h", 1, "c", "consume", 5, 6, 7, False, "string", "p", "a", 0, 1.5, *secure
    )


def test_parse_options_defaults() -> None:
    """Only the queue is needed; a new query gives up sooner than a running one, unless retrySeconds is given."""
    options = parse_options({"queue": "q"})
    assert options == Options("q")
    assert (options.at_first, options.later) == (FIRST_CONTACT, RETRY)
    options = parse_options({"queue": "q", "retrySeconds": "0"})
    assert (options.at_first, options.later) == (0, 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "the option queue is missing"),
        ({"queue": "  "}, "the option queue is empty"),
        ({"queue": "q", "port": "0"}, "the option port is '0', but must be a whole number from 1 to 65535"),
        ({"queue": "q", "port": "x"}, "port is 'x'"),
        ({"queue": "q", "mode": "drain"}, "the option mode is 'drain', but must be peek or consume"),
        ({"queue": "q", "maxMessagesPerTrigger": "0"}, "a whole number of 1 or more"),
        ({"queue": "q", "failOnDataLoss": "1"}, "failOnDataLoss is '1', but must be true or false"),
        ({"queue": "q", "bodyType": "xml"}, "bodyType is 'xml', but must be binary or string"),
        ({"queue": "q", "retrySeconds": "inf"}, "retrySeconds is 'inf'"),
        ({"queue": "q", "retrySeconds": "soon"}, "retrySeconds is 'soon'"),
        ({"queue": "q", "maxMessagePerTriger": "5"}, "did you mean maxMessagesPerTrigger?"),
        ({"queue": "q", "zzz": "5"}, "there is no option 'zzz' of qs: there are queue, host, port"),
        ({"queue": "q", "path": "orders"}, "a queue has no path"),
        ({"queue": "q", "tls": "yes"}, "the option tls is 'yes', but must be true or false"),
        ({"queue": "q", "tokenFile": ""}, "the option tokenFile is empty"),
        ({"queue": "q", "token": "qs_secret"}, "Spark would show it in plans: name a file with tokenFile"),
        ({"queue": "q", "txnAppId": "a"}, "the option txnVersion is missing"),
        ({"queue": "q", "txnVersion": "1"}, "the option txnAppId is missing"),
        ({"queue": "q", "txnAppId": "a", "txnVersion": "-1"}, "txnVersion is '-1'"),
    ],
)
def test_parse_options_names_wrong_one(given: dict[str, str], said: str) -> None:
    """The error names the option, what it is, and what it may be."""
    with pytest.raises(BadOptionError) as raised:
        parse_options(given)
    assert said in str(raised.value)
    assert "qs_secret" not in str(raised.value)
    assert raised.value.exit_code == 2


def test_parse_options_ignores_those_of_spark() -> None:
    """A stream's sink gets the checkpoint's location among its options."""
    assert parse_options({"queue": "q", "checkpointLocation": "/x", "queryName": "n"}) == Options("q")


def test_consumer_of_requires_consumer() -> None:
    """A stream has no name that is stable and its own but one that is given."""
    assert consumer_of(Options("q", consumer="c"), "a stream") == "c"
    with pytest.raises(BadOptionError, match="the option consumer is missing: a stream needs a name of its own"):
        consumer_of(Options("q"), "a stream")
