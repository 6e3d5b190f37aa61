// A full round with a qs server, with nothing but Node: a socket and strings.
// Usage: node client.js HOST PORT. Prints a line for each step; ends with 1 and says why at the first surprise.
// QS_CA: a file of CA certificates, for a port with TLS; QS_TOKEN: who the client is.
'use strict';
const fs = require('fs');
const net = require('net');
const tls = require('tls');

const QUEUE = 'interop';
const OPEN = '<qs xmlns="http://purl.oclc.org/DEFUZE/qs" type="request"';
const TEXT = 'Grüße, a plain text';
const MARKUP = '<b class="x">Tom & Jerry\'s</b>\nsecond line\r\nthird ]]>';
const BYTES = Buffer.from([0x00, 0xff, 0x10, 0x80, 0x0a]);

function fail(text) {
  process.stderr.write(`client.js: ${text}\n`);
  process.exit(1);
}

function check(holds, text) {
  if (!holds) fail(text);
}

// -- strings

const WRITTEN = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '\n': '&#10;', '\r': '&#13;' };
const READ = { lt: '<', gt: '>', quot: '"', amp: '&', '#9': '\t', '#10': '\n', '#13': '\r' };

const escape = (text) => text.replace(/[&<>\n\r]/g, (character) => WRITTEN[character]);
const unescape = (text) => text.replace(/&(#?\w+);/g, (_, name) => READ[name]);

// The text between start and end; null when it is not there.
function between(text, start, end) {
  const from = text.indexOf(start);
  const to = from < 0 ? -1 : text.indexOf(end, from + start.length);
  return to < 0 ? null : text.slice(from + start.length, to);
}

function attribute(text, name) {
  const value = between(text, ` ${name}="`, '"');
  check(value !== null, `no attribute ${name} in: ${text}`);
  return value;
}

// -- requests and answers

const lines = [];
const waiting = [];

function connect(host, port) {
  const ca = process.env.QS_CA;
  const socket = ca ? tls.connect({ host, port, ca: fs.readFileSync(ca) }) : net.connect(port, host);
  let rest = '';
  socket.setEncoding('utf8'); // also joins characters that were cut in two
  socket.setTimeout(20000, () => fail('no answer in 20 s'));
  socket.on('error', (error) => fail(`connection to ${host} port ${port}: ${error.message}`));
  socket.on('end', () => fail('the server closed the connection'));
  socket.on('data', (data) => {
    const pieces = (rest + data).split('\r\n');
    rest = pieces.pop();
    for (const line of pieces) {
      if (waiting.length) waiting.shift()(line);
      else lines.push(line);
    }
  });
  return socket;
}

const line = () => (lines.length ? Promise.resolve(lines.shift()) : new Promise((give) => waiting.push(give)));

let socket;
let req = 0;

function build(op, beside = '') {
  req += 1;
  return `${OPEN} req="${req}">${op}${beside}</qs>`;
}

async function expect(number, type = 'response') {
  const answer = await line();
  check(attribute(answer, 'req') === String(number), `not the answer to request ${number}: ${answer}`);
  check(attribute(answer, 'type') === type, `request ${number} was answered with: ${answer}`);
  return answer;
}

function ask(op, beside = '', type = 'response') {
  socket.write(build(op, beside));
  return expect(req, type);
}

async function main(host, port) {
  socket = connect(host, Number(port));
  const qid = `<qid>${QUEUE}</qid>`;
  const say = (text) => process.stdout.write(`${text}\n`);

  const token = process.env.QS_TOKEN;
  if (token) await ask('<op><authenticate/></op>', `<token>${token}</token>`);

  let answer = await ask('<op><list-queues/></op>');
  check(!answer.includes(`<queue>${QUEUE}</queue>`), `the queue ${QUEUE} is there already: ${answer}`);
  say(`list-queues: ${QUEUE} is not there yet`);

  answer = await ask('<op><new-queue/></op>', qid);
  check(between(answer, '<qid>', '</qid>') === QUEUE, `new-queue answered with: ${answer}`);
  say(`new-queue: ${QUEUE}`);

  answer = await ask('<op><new-queue/></op>', qid, 'error');
  const conflict = between(answer, '<error code="409" type="conflict">', '</error>');
  check(conflict !== null, `the second new-queue answered with: ${answer}`);
  say(`new-queue again: 409 conflict, ${unescape(conflict)}`);

  const mids = [];
  const pushes = [
    ['text', `<payload>${escape(TEXT)}</payload>`],
    ['markup and line breaks', `<payload>${escape(MARKUP)}</payload>`],
    ['base64 of bytes', `<payload encoding="base64">${BYTES.toString('base64')}</payload>`],
  ];
  for (const [name, payload] of pushes) {
    answer = await ask('<op><push-message/></op>', qid + payload);
    mids.push(between(answer, '<mid>', '</mid>'));
    check(mids.at(-1) !== null, `push-message answered with: ${answer}`);
    say(`push-message: ${name}`);
  }

  const first = req + 1;
  socket.write(
    build('<op><ping/></op>') +
      build('<op><list-messages/></op>', qid) +
      build('<op peek="yes"><get-message/></op>', `${qid}<mid>${mids[0]}</mid>`) +
      build('<op><queue-stats/></op>', qid) +
      build('<op><ping/></op>'),
  );
  await expect(first);
  answer = await expect(first + 1);
  const listed = mids.map((mid) => `<mid>${mid}</mid>`).join('');
  check(answer.includes(`<messages>${listed}</messages>`), `list-messages answered with: ${answer}`);
  answer = await expect(first + 2);
  check(attribute(answer, 'status') === 'ready', `a peek answered with: ${answer}`);
  check(unescape(between(answer, '<payload>', '</payload>')) === TEXT, `a peek answered with: ${answer}`);
  answer = await expect(first + 3);
  check(attribute(answer, 'ready') === '3', `queue-stats answered with: ${answer}`);
  await expect(first + 4);
  say('5 requests in one write: 5 answers in their order');

  answer = await ask('<op max="10" visibility="60"><receive-message/></op>', qid);
  const received = answer.split('<message ').slice(1).map((part) => ` ${part}`);
  check(received.length === 3, `receive-message answered with: ${answer}`);
  received.forEach((message, i) => {
    check(attribute(message, 'mid') === mids[i], `message ${i + 1} should be ${mids[i]}: ${message}`);
    check(attribute(message, 'receives') === '1', `message ${i + 1} was not received before: ${message}`);
  });
  say('receive-message: 3 messages, oldest first');

  [TEXT, MARKUP].forEach((sent, i) => {
    const payload = unescape(between(received[i], '<payload>', '</payload>') ?? '');
    check(payload === sent, `payload ${i + 1} is not what was sent: ${received[i]}`);
    say(`payload ${i + 1}: ${Buffer.byteLength(payload)} bytes, as sent`);
  });
  const bytes = Buffer.from(between(received[2], '<payload encoding="base64">', '</payload>') ?? '', 'base64');
  check(bytes.equals(BYTES), `payload 3 is not what was sent: ${received[2]}`);
  say(`payload 3: ${bytes.length} bytes, as sent`);

  answer = await ask('<op><delete-message/></op>', `${qid}<mid receives="1">${mids[0]}</mid>`);
  check(between(answer, '<mid>', '</mid>') === mids[0], `delete-message answered with: ${answer}`);
  say('delete-message: 1 deleted');

  const both = `<messages><mid>${mids[1]}</mid><mid>${mids[2]}</mid></messages>`;
  answer = await ask('<op><delete-message/></op>', qid + both);
  check(answer.includes(both), `delete-message answered with: ${answer}`);
  say('delete-message: 2 deleted in one request');

  answer = await ask('<op><queue-stats/></op>', qid);
  const stats = between(answer, '<queues>', '</queues>') ?? '';
  const names = ['new', 'ready', 'in-flight', 'pushed', 'delivered', 'deleted'];
  say(`queue-stats: ${names.map((name) => `${name} ${attribute(stats, name)}`).join(', ')}`);

  await ask('<op><delete-queue/></op>', qid);
  say(`delete-queue: ${QUEUE}`);

  answer = await ask('<op><list-queues/></op>');
  check(!answer.includes(`<queue>${QUEUE}</queue>`), `the queue ${QUEUE} is still there: ${answer}`);
  say(`list-queues: ${QUEUE} is gone`);
  socket.destroy();
}

if (process.argv.length !== 4) fail('usage: client.js HOST PORT');
main(process.argv[2], process.argv[3]).catch((error) => fail(error.stack));
