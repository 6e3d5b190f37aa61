// A full round with a qs server, with nothing but Java: a socket and strings.
// Usage: java Client.java HOST PORT. Prints a line for each step; ends with 1 and says why at the first surprise.
// QS_CA: a file of CA certificates, for a port with TLS; QS_TOKEN: who the client is.

import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManagerFactory;

public class Client {
    static final String QUEUE = "interop";
    static final String OPEN = "<qs xmlns=\"http://purl.oclc.org/DEFUZE/qs\" type=\"request\"";
    static final String TEXT = "Gr\u00fc\u00dfe, a plain text";
    static final String MARKUP = "<b class=\"x\">Tom & Jerry's</b>\nsecond line\r\nthird ]]>";
    static final byte[] BYTES = {0x00, (byte) 0xff, 0x10, (byte) 0x80, 0x0a};

    static class Surprise extends RuntimeException {
        Surprise(String text) {
            super(text);
        }
    }

    static void check(boolean holds, String text) {
        if (!holds) {
            throw new Surprise(text);
        }
    }

    // -- strings

    static String escape(String text) {
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            .replace("\n", "&#10;").replace("\r", "&#13;");
    }

    static String unescape(String text) {
        return text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&#9;", "\t")
            .replace("&#10;", "\n").replace("&#13;", "\r").replace("&amp;", "&");
    }

    /** The text between start and end; "" when it is not there. */
    static String between(String text, String start, String end) {
        int from = text.indexOf(start);
        int to = from < 0 ? -1 : text.indexOf(end, from + start.length());
        return to < 0 ? "" : text.substring(from + start.length(), to);
    }

    static String attribute(String text, String name) {
        check(text.contains(" " + name + "=\""), "no attribute " + name + " in: " + text);
        return between(text, " " + name + "=\"", "\"");
    }

    // -- requests and answers

    final OutputStream out;
    final BufferedReader in;
    int req = 0;

    Client(Socket socket) throws IOException {
        socket.setSoTimeout(20_000);
        out = socket.getOutputStream();
        in = new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
    }

    String build(String op, String beside) {
        req += 1;
        return OPEN + " req=\"" + req + "\">" + op + beside + "</qs>";
    }

    void send(String documents) throws IOException {
        out.write(documents.getBytes(StandardCharsets.UTF_8));
        out.flush();
    }

    String expect(int number, String type) throws IOException {
        String answer = in.readLine();
        check(answer != null, "no answer to request " + number);
        check(attribute(answer, "req").equals("" + number), "not the answer to request " + number + ": " + answer);
        check(attribute(answer, "type").equals(type), "request " + number + " was answered with: " + answer);
        return answer;
    }

    String ask(String op, String beside) throws IOException {
        send(build(op, beside));
        return expect(req, "response");
    }

    static Socket connect(String host, int port) throws IOException, GeneralSecurityException {
        String ca = System.getenv("QS_CA");
        return ca == null ? new Socket(host, port) : secure(ca, host, port);
    }

    /** A TLS connection to a server whose certificate one of the CAs in the PEM file has signed, for this host. */
    static Socket secure(String ca, String host, int port) throws IOException, GeneralSecurityException {
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null, null);
        try (InputStream pem = new FileInputStream(ca)) {
            for (Certificate each : CertificateFactory.getInstance("X.509").generateCertificates(pem)) {
                trusted.setCertificateEntry("ca-" + trusted.size(), each);
            }
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        SSLSocket socket = (SSLSocket) context.getSocketFactory().createSocket(host, port);
        SSLParameters checks = socket.getSSLParameters();
        checks.setEndpointIdentificationAlgorithm("HTTPS");  // without it, Java does not look at the host name
        socket.setSSLParameters(checks);
        return socket;
    }

    static void say(String text) {
        System.out.print(text + "\n");
    }

    void round() throws IOException {
        String qid = "<qid>" + QUEUE + "</qid>";

        String token = System.getenv("QS_TOKEN");
        if (token != null) {
            ask("<op><authenticate/></op>", "<token>" + token + "</token>");
        }

        String answer = ask("<op><list-queues/></op>", "");
        check(!answer.contains("<queue>" + QUEUE + "</queue>"), "the queue " + QUEUE + " is there already: " + answer);
        say("list-queues: " + QUEUE + " is not there yet");

        answer = ask("<op><new-queue/></op>", qid);
        check(between(answer, "<qid>", "</qid>").equals(QUEUE), "new-queue answered with: " + answer);
        say("new-queue: " + QUEUE);

        send(build("<op><new-queue/></op>", qid));
        answer = expect(req, "error");
        String conflict = between(answer, "<error code=\"409\" type=\"conflict\">", "</error>");
        check(!conflict.isEmpty(), "the second new-queue answered with: " + answer);
        say("new-queue again: 409 conflict, " + unescape(conflict));

        List<String> mids = new ArrayList<>();
        String[][] pushes = {
            {"text", "<payload>" + escape(TEXT) + "</payload>"},
            {"markup and line breaks", "<payload>" + escape(MARKUP) + "</payload>"},
            {"base64 of bytes",
                "<payload encoding=\"base64\">" + Base64.getEncoder().encodeToString(BYTES) + "</payload>"},
        };
        for (String[] push : pushes) {
            answer = ask("<op><push-message/></op>", qid + push[1]);
            String mid = between(answer, "<mid>", "</mid>");
            check(!mid.isEmpty(), "push-message answered with: " + answer);
            mids.add(mid);
            say("push-message: " + push[0]);
        }

        int first = req + 1;
        send(build("<op><ping/></op>", "")
            + build("<op><list-messages/></op>", qid)
            + build("<op peek=\"yes\"><get-message/></op>", qid + "<mid>" + mids.get(0) + "</mid>")
            + build("<op><queue-stats/></op>", qid)
            + build("<op><ping/></op>", ""));
        expect(first, "response");
        answer = expect(first + 1, "response");
        String listed = "<mid>" + String.join("</mid><mid>", mids) + "</mid>";
        check(answer.contains("<messages>" + listed + "</messages>"), "list-messages answered with: " + answer);
        answer = expect(first + 2, "response");
        check(attribute(answer, "status").equals("ready"), "a peek answered with: " + answer);
        check(unescape(between(answer, "<payload>", "</payload>")).equals(TEXT), "a peek answered with: " + answer);
        answer = expect(first + 3, "response");
        check(attribute(answer, "ready").equals("3"), "queue-stats answered with: " + answer);
        expect(first + 4, "response");
        say("5 requests in one write: 5 answers in their order");

        answer = ask("<op max=\"10\" visibility=\"60\"><receive-message/></op>", qid);
        String[] received = answer.split("<message ");
        check(received.length == 4, "receive-message answered with: " + answer);
        received = new String[] {" " + received[1], " " + received[2], " " + received[3]};
        for (int i = 0; i < 3; i++) {
            check(attribute(received[i], "mid").equals(mids.get(i)),
                "message " + (i + 1) + " should be " + mids.get(i) + ": " + received[i]);
            check(attribute(received[i], "receives").equals("1"),
                "message " + (i + 1) + " was not received before: " + received[i]);
        }
        say("receive-message: 3 messages, oldest first");

        String base64 = between(received[2], "<payload encoding=\"base64\">", "</payload>");
        byte[][] payloads = {
            unescape(between(received[0], "<payload>", "</payload>")).getBytes(StandardCharsets.UTF_8),
            unescape(between(received[1], "<payload>", "</payload>")).getBytes(StandardCharsets.UTF_8),
            Base64.getDecoder().decode(base64),
        };
        byte[][] sent = {
            TEXT.getBytes(StandardCharsets.UTF_8), MARKUP.getBytes(StandardCharsets.UTF_8), BYTES,
        };
        for (int i = 0; i < 3; i++) {
            check(Arrays.equals(payloads[i], sent[i]), "payload " + (i + 1) + " is not what was sent: " + received[i]);
            say("payload " + (i + 1) + ": " + payloads[i].length + " bytes, as sent");
        }

        answer = ask("<op><delete-message/></op>", qid + "<mid receives=\"1\">" + mids.get(0) + "</mid>");
        check(between(answer, "<mid>", "</mid>").equals(mids.get(0)), "delete-message answered with: " + answer);
        say("delete-message: 1 deleted");

        String both = "<messages><mid>" + mids.get(1) + "</mid><mid>" + mids.get(2) + "</mid></messages>";
        answer = ask("<op><delete-message/></op>", qid + both);
        check(answer.contains(both), "delete-message answered with: " + answer);
        say("delete-message: 2 deleted in one request");

        answer = ask("<op><queue-stats/></op>", qid);
        String stats = between(answer, "<queues>", "</queues>");
        List<String> figures = new ArrayList<>();
        for (String name : List.of("new", "ready", "in-flight", "pushed", "delivered", "deleted")) {
            figures.add(name + " " + attribute(stats, name));
        }
        say("queue-stats: " + String.join(", ", figures));

        ask("<op><delete-queue/></op>", qid);
        say("delete-queue: " + QUEUE);

        answer = ask("<op><list-queues/></op>", "");
        check(!answer.contains("<queue>" + QUEUE + "</queue>"), "the queue " + QUEUE + " is still there: " + answer);
        say("list-queues: " + QUEUE + " is gone");
    }

    public static void main(String[] arguments) {
        try {
            check(arguments.length == 2, "usage: Client.java HOST PORT");
            try (Socket socket = connect(arguments[0], Integer.parseInt(arguments[1]))) {
                new Client(socket).round();
            }
        } catch (Surprise | IOException | GeneralSecurityException surprise) {
            System.err.println("Client.java: " + surprise.getMessage());
            System.exit(1);
        }
    }
}
