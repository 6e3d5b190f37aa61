#!/usr/bin/env bash
# A full round with a qs server, with nothing but bash: a socket and strings.
# Usage: client.sh HOST PORT. Prints a line for each step; ends with 1 and says why at the first surprise.
# QS_CA: a file of CA certificates, for a port with TLS (openssl s_client then holds the socket); QS_TOKEN: who it is.
set -uo pipefail
LC_ALL=C  # lengths are counted in bytes

QUEUE=interop
OPEN='<qs xmlns="http://purl.oclc.org/DEFUZE/qs" type="request"'
TEXT='Grüße, a plain text'
MARKUP=$'<b class="x">Tom & Jerry\'s</b>\nsecond line\r\nthird ]]>'
BASE64='AP8QgAo='  # the bytes 00 ff 10 80 0a

fail() {
    echo "client.sh: $1" >&2
    exit 1
}

# -- strings: each sets `value`

escape() {
    value=${1//&/"&amp;"}
    value=${value//</"&lt;"}
    value=${value//>/"&gt;"}
    value=${value//$'\n'/"&#10;"}
    value=${value//$'\r'/"&#13;"}
}

unescape() {
    value=${1//&lt;/"<"}
    value=${value//&gt;/">"}
    value=${value//&quot;/'"'}
    value=${value//&#9;/$'\t'}
    value=${value//&#10;/$'\n'}
    value=${value//&#13;/$'\r'}
    value=${value//&amp;/"&"}
}

# The text between START and END.
between() {
    value=''
    case $1 in *"$2"*"$3"*) ;; *) return 1 ;; esac
    value=${1#*"$2"}
    value=${value%%"$3"*}
}

attribute() {
    between "$1" " $2=\"" '"' || fail "no attribute $2 in: $1"
}

# -- requests and answers

req=0

# A request document in `document`: OP (with its attributes) and what stands beside it.
build() {
    req=$((req + 1))
    document="$OPEN req=\"$req\">$1$2</qs>"
}

# Reads one line into `answer`: it has to be the one to request NUMBER, a response.
expect() {
    IFS= read -r -t 20 -u 3 answer || fail "no answer to request $1"
    answer=${answer%$'\r'}
    attribute "$answer" req
    [ "$value" = "$1" ] || fail "the answer to request $1 says req=$value: $answer"
    attribute "$answer" type
    [ "$value" = "${2:-response}" ] || fail "request $1 was answered with: $answer"
}

ask() {
    build "$1" "${2:-}"
    printf '%s' "$document" >&4 || fail 'cannot write to the server'
    expect "$req" "${3:-response}"
}

[ $# -eq 2 ] || fail 'usage: client.sh HOST PORT'
if [ -n "${QS_CA:-}" ]; then
    coproc TLS { exec openssl s_client -quiet -no_ign_eof -verify_quiet -verify_return_error -CAfile "$QS_CA" \
        -verify_hostname "$1" -connect "$1:$2" 2> >(grep error >&2); }
    exec 3<&"${TLS[0]}" 4>&"${TLS[1]}"
else
    exec 3<>"/dev/tcp/$1/$2" 4>&3 || fail "cannot connect to $1 port $2"
fi
[ -z "${QS_TOKEN:-}" ] || ask '<op><authenticate/></op>' "<token>$QS_TOKEN</token>"

qid="<qid>$QUEUE</qid>"

ask '<op><list-queues/></op>'
case $answer in *"<queue>$QUEUE</queue>"*) fail "the queue $QUEUE is there already: $answer" ;; esac
echo "list-queues: $QUEUE is not there yet"

ask '<op><new-queue/></op>' "$qid"
between "$answer" '<qid>' '</qid>'
[ "$value" = "$QUEUE" ] || fail "new-queue answered with: $answer"
echo "new-queue: $QUEUE"

ask '<op><new-queue/></op>' "$qid" error
between "$answer" '<error code="409" type="conflict">' '</error>' || fail "the second new-queue answered with: $answer"
unescape "$value"
echo "new-queue again: 409 conflict, $value"

mids=()
push() {
    ask '<op><push-message/></op>' "$qid$2"
    between "$answer" '<mid>' '</mid>' || fail "push-message answered with: $answer"
    mids+=("$value")
    echo "push-message: $1"
}
escape "$TEXT"
push 'text' "<payload>$value</payload>"
escape "$MARKUP"
push 'markup and line breaks' "<payload>$value</payload>"
push 'base64 of bytes' "<payload encoding=\"base64\">$BASE64</payload>"

first=$((req + 1))
batch=''
build '<op><ping/></op>' '' && batch+=$document
build '<op><list-messages/></op>' "$qid" && batch+=$document
build '<op peek="yes"><get-message/></op>' "$qid<mid>${mids[0]}</mid>" && batch+=$document
build '<op><queue-stats/></op>' "$qid" && batch+=$document
build '<op><ping/></op>' '' && batch+=$document
printf '%s' "$batch" >&4 || fail 'cannot write to the server'
expect "$first"
expect $((first + 1))
listed="<messages><mid>${mids[0]}</mid><mid>${mids[1]}</mid><mid>${mids[2]}</mid></messages>"
case $answer in *"$listed"*) ;; *) fail "list-messages answered with: $answer" ;; esac
expect $((first + 2))
case $answer in *' status="ready"'*) ;; *) fail "a peek answered with: $answer" ;; esac
between "$answer" '<payload>' '</payload>' || fail "a peek answered with: $answer"
expect $((first + 3))
attribute "$answer" ready
[ "$value" = 3 ] || fail "queue-stats answered with: $answer"
expect $((first + 4))
echo '5 requests in one write: 5 answers in their order'

ask '<op max="10" visibility="60"><receive-message/></op>' "$qid"
received=()
rest=${answer#*<messages>}
while between "$rest" '<message ' '</message>'; do
    received+=(" $value")
    rest=${rest#*</message>}
done
[ ${#received[@]} -eq 3 ] || fail "receive-message answered with: $answer"
for i in 0 1 2; do
    attribute "${received[i]}" mid
    [ "$value" = "${mids[i]}" ] || fail "message $((i + 1)) should be ${mids[i]}: ${received[i]}"
    attribute "${received[i]}" receives
    [ "$value" = 1 ] || fail "message $((i + 1)) was not received before: ${received[i]}"
done
echo 'receive-message: 3 messages, oldest first'

sent=("$TEXT" "$MARKUP")
for i in 0 1; do
    between "${received[i]}" '<payload>' '</payload>' || fail "no text in: ${received[i]}"
    unescape "$value"
    [ "$value" = "${sent[i]}" ] || fail "payload $((i + 1)) is not what was sent: $value"
    echo "payload $((i + 1)): ${#value} bytes, as sent"
done
between "${received[2]}" '<payload encoding="base64">' '</payload>' || fail "no base64 in: ${received[2]}"
[ "$value" = "$BASE64" ] || fail "payload 3 is not what was sent: $value"
padding=${value//[!=]/}
echo "payload 3: $((${#value} / 4 * 3 - ${#padding})) bytes, as sent"

ask '<op><delete-message/></op>' "$qid<mid receives=\"1\">${mids[0]}</mid>"
between "$answer" '<mid>' '</mid>'
[ "$value" = "${mids[0]}" ] || fail "delete-message answered with: $answer"
echo 'delete-message: 1 deleted'

both="<messages><mid>${mids[1]}</mid><mid>${mids[2]}</mid></messages>"
ask '<op><delete-message/></op>' "$qid$both"
case $answer in *"$both"*) ;; *) fail "delete-message answered with: $answer" ;; esac
echo 'delete-message: 2 deleted in one request'

ask '<op><queue-stats/></op>' "$qid"
line='queue-stats:'
for name in new ready in-flight pushed delivered deleted; do
    attribute "${answer#*<queues>}" "$name"
    line+=" $name $value,"
done
echo "${line%,}"

ask '<op><delete-queue/></op>' "$qid"
echo "delete-queue: $QUEUE"

ask '<op><list-queues/></op>'
case $answer in *"<queue>$QUEUE</queue>"*) fail "the queue $QUEUE is still there: $answer" ;; esac
echo "list-queues: $QUEUE is gone"
