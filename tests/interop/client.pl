#!/usr/bin/env perl
# A full round with a qs server, with nothing but Perl: a socket and strings (of bytes, UTF-8 throughout).
# Usage: client.pl HOST PORT. Prints a line for each step; ends with 1 and says why at the first surprise.
use strict;
use warnings;
use IO::Socket::INET;
use MIME::Base64 qw(encode_base64 decode_base64);

my $QUEUE  = 'interop';
my $OPEN   = '<qs xmlns="http://purl.oclc.org/DEFUZE/qs" type="request"';
my $TEXT   = "Gr\xc3\xbc\xc3\x9fe, a plain text";
my $MARKUP = qq{<b class="x">Tom & Jerry's</b>\nsecond line\r\nthird ]]>};
my $BYTES  = "\x00\xff\x10\x80\x0a";

sub fail {
    print STDERR "client.pl: $_[0]\n";
    exit 1;
}

sub check {
    my ($holds, $text) = @_;
    fail($text) unless $holds;
}

# -- strings

my %WRITTEN = ('&' => '&amp;', '<' => '&lt;', '>' => '&gt;', "\n" => '&#10;', "\r" => '&#13;');
my %READ    = (lt => '<', gt => '>', quot => '"', amp => '&', '#9' => "\t", '#10' => "\n", '#13' => "\r");

sub escape   { my ($text) = @_; $text =~ s/([&<>\n\r])/$WRITTEN{$1}/g;     return $text; }
sub unescape { my ($text) = @_; $text =~ s/&(#?\w+);/$READ{$1} \/\/ ''/ge; return $text; }

# The text between start and end; '' when it is not there.
sub between {
    my ($text, $start, $end) = @_;
    my $from = index($text, $start);
    return '' if $from < 0;
    $from += length $start;
    my $to = index($text, $end, $from);
    return $to < 0 ? '' : substr($text, $from, $to - $from);
}

sub attribute {
    my ($text, $name) = @_;
    check(index($text, " $name=\"") >= 0, "no attribute $name in: $text");
    return between($text, " $name=\"", '"');
}

# -- requests and answers

check(@ARGV == 2, 'usage: client.pl HOST PORT');
my $socket = IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => $ARGV[1], Proto => 'tcp')
    or fail("cannot connect to $ARGV[0] port $ARGV[1]: $!");
$SIG{ALRM} = sub { fail('no answer in 20 s') };
$| = 1;

my $req = 0;

sub build {
    my ($op, $beside) = @_;
    $req += 1;
    return "$OPEN req=\"$req\">$op" . ($beside // '') . '</qs>';
}

sub expect {
    my ($number, $type) = @_;
    alarm 20;
    my $answer = <$socket> // fail("no answer to request $number");
    alarm 0;
    $answer =~ s/\r\n\z//;
    check(attribute($answer, 'req') eq $number, "not the answer to request $number: $answer");
    check(attribute($answer, 'type') eq ($type // 'response'), "request $number was answered with: $answer");
    return $answer;
}

sub ask {
    my ($op, $beside, $type) = @_;
    print {$socket} build($op, $beside) or fail("cannot write to the server: $!");
    return expect($req, $type);
}

my $qid = "<qid>$QUEUE</qid>";

my $answer = ask('<op><list-queues/></op>');
check(index($answer, "<queue>$QUEUE</queue>") < 0, "the queue $QUEUE is there already: $answer");
print "list-queues: $QUEUE is not there yet\n";

$answer = ask('<op><new-queue/></op>', $qid);
check(between($answer, '<qid>', '</qid>') eq $QUEUE, "new-queue answered with: $answer");
print "new-queue: $QUEUE\n";

$answer = ask('<op><new-queue/></op>', $qid, 'error');
my $conflict = between($answer, '<error code="409" type="conflict">', '</error>');
check($conflict ne '', "the second new-queue answered with: $answer");
print "new-queue again: 409 conflict, ", unescape($conflict), "\n";

my @mids;
for my $push (
    ['text',                   '<payload>' . escape($TEXT) . '</payload>'],
    ['markup and line breaks', '<payload>' . escape($MARKUP) . '</payload>'],
    ['base64 of bytes',        '<payload encoding="base64">' . encode_base64($BYTES, '') . '</payload>'],
    )
{
    my ($name, $payload) = @$push;
    $answer = ask('<op><push-message/></op>', $qid . $payload);
    push @mids, between($answer, '<mid>', '</mid>');
    check($mids[-1] ne '', "push-message answered with: $answer");
    print "push-message: $name\n";
}

my $first = $req + 1;
my $batch = join '',
    build('<op><ping/></op>'),
    build('<op><list-messages/></op>', $qid),
    build('<op peek="yes"><get-message/></op>', "$qid<mid>$mids[0]</mid>"),
    build('<op><queue-stats/></op>', $qid),
    build('<op><ping/></op>');
print {$socket} $batch or fail("cannot write to the server: $!");
expect($first);
$answer = expect($first + 1);
my $listed = join '', map {"<mid>$_</mid>"} @mids;
check(index($answer, "<messages>$listed</messages>") >= 0, "list-messages answered with: $answer");
$answer = expect($first + 2);
check(attribute($answer, 'status') eq 'ready', "a peek answered with: $answer");
check(unescape(between($answer, '<payload>', '</payload>')) eq $TEXT, "a peek answered with: $answer");
$answer = expect($first + 3);
check(attribute($answer, 'ready') eq '3', "queue-stats answered with: $answer");
expect($first + 4);
print "5 requests in one write: 5 answers in their order\n";

$answer = ask('<op max="10" visibility="60"><receive-message/></op>', $qid);
my @received = map {" $_"} split /<message /, $answer;
shift @received;
check(@received == 3, "receive-message answered with: $answer");
for my $i (0 .. 2) {
    my $number = $i + 1;
    check(attribute($received[$i], 'mid') eq $mids[$i],  "message $number should be $mids[$i]: $received[$i]");
    check(attribute($received[$i], 'receives') eq '1', "message $number was not received before: $received[$i]");
}
print "receive-message: 3 messages, oldest first\n";

my @payloads = (
    unescape(between($received[0], '<payload>', '</payload>')),
    unescape(between($received[1], '<payload>', '</payload>')),
    decode_base64(between($received[2], '<payload encoding="base64">', '</payload>')),
);
my @sent = ($TEXT, $MARKUP, $BYTES);
for my $i (0 .. 2) {
    my $number = $i + 1;
    check($payloads[$i] eq $sent[$i], "payload $number is not what was sent: $received[$i]");
    print "payload $number: ", length($payloads[$i]), " bytes, as sent\n";
}

$answer = ask('<op><delete-message/></op>', "$qid<mid receives=\"1\">$mids[0]</mid>");
check(between($answer, '<mid>', '</mid>') eq $mids[0], "delete-message answered with: $answer");
print "delete-message: 1 deleted\n";

my $both = "<messages><mid>$mids[1]</mid><mid>$mids[2]</mid></messages>";
$answer = ask('<op><delete-message/></op>', $qid . $both);
check(index($answer, $both) >= 0, "delete-message answered with: $answer");
print "delete-message: 2 deleted in one request\n";

$answer = ask('<op><queue-stats/></op>', $qid);
my $stats = between($answer, '<queues>', '</queues>');
print 'queue-stats: ',
    join(', ', map { "$_ " . attribute($stats, $_) } qw(new ready in-flight pushed delivered deleted)), "\n";

ask('<op><delete-queue/></op>', $qid);
print "delete-queue: $QUEUE\n";

$answer = ask('<op><list-queues/></op>');
check(index($answer, "<queue>$QUEUE</queue>") < 0, "the queue $QUEUE is still there: $answer");
print "list-queues: $QUEUE is gone\n";
