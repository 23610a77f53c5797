import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.HashMap;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.serialization.Encoder;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.functions.sink.filesystem.BucketAssigner;
import org.apache.flink.streaming.api.functions.sink.filesystem.bucketassigners.SimpleVersionedStringSerializer;

/** The queries without state: q0, q1, q2, q10, q13, q14, q21 and q22. */
final class Stateless {
    private static final String[] PLAIN = {"bid.auction", "bid.bidder", "bid.price", "bid.dateTime", "bid.extra"};
    private static final String[] LINKS = {"bid.auction", "bid.bidder", "bid.price", "bid.channel", "bid.url"};

    private Stateless() {}

    static void q0(Nexmark job) {
        job.write(job.events(PLAIN).map(event -> line(event.bid)).returns(Types.STRING));
    }

    static void q1(Nexmark job) {
        job.write(job.events(PLAIN).map(event -> euros(event.bid)).returns(Types.STRING));
    }

    static void q2(Nexmark job) {
        job.write(
                job.events("bid.auction", "bid.price")
                        .filter(event -> event.bid.auction % 123 == 0)
                        .map(event -> event.bid.auction + "," + event.bid.price)
                        .returns(Types.STRING));
    }

    /** Files in a bucket for each minute of event time. Kafka has no buckets: there the lines go to the topic. */
    static void q10(Nexmark job) {
        DataStream<Event> events = job.events(PLAIN);
        if (job.kafka()) {
            job.write(events.map(event -> line(event.bid)).returns(Types.STRING));
            return;
        }
        TypeInformation<Tuple2<Long, String>> timedLine = Types.TUPLE(Types.LONG, Types.STRING);
        events.map(event -> Tuple2.of(event.bid.dateTime, line(event.bid)))
                .returns(timedLine)
                .sinkTo(FileSink.forRowFormat(job.output(), new LineOnly()).withBucketAssigner(new MinuteBuckets()).build());
    }

    static void q13(Nexmark job) {
        job.write(
                job.events("bid.auction", "bid.bidder", "bid.price", "bid.dateTime")
                        .map(new SideValue(job.side()))
                        .returns(Types.STRING));
    }

    static void q14(Nexmark job) {
        job.write(
                job.events(PLAIN)
                        .filter(event -> 0.908 * event.bid.price > 1000000 && 0.908 * event.bid.price < 50000000)
                        .map(event -> timeTyped(event.bid))
                        .returns(Types.STRING));
    }

    static void q21(Nexmark job) {
        job.write(
                job.events(LINKS)
                        .<String>flatMap(
                                (event, out) -> {
                                    Event.Bid bid = event.bid;
                                    String channelId = channelId(bid.channel, bid.url);
                                    if (channelId != null) {
                                        out.collect(
                                                bid.auction + "," + bid.bidder + "," + bid.price + "," + bid.channel + "," + channelId);
                                    }
                                })
                        .returns(Types.STRING));
    }

    static void q22(Nexmark job) {
        job.write(
                job.events(LINKS)
                        .map(event -> directories(event.bid))
                        .returns(Types.STRING));
    }

    private static String line(Event.Bid bid) {
        return bid.auction + "," + bid.bidder + "," + bid.price + "," + bid.dateTime + "," + bid.extra;
    }

    private static String euros(Event.Bid bid) {
        return bid.auction + "," + bid.bidder + "," + bid.price * 0.908 + "," + bid.dateTime + "," + bid.extra;
    }

    private static String timeTyped(Event.Bid bid) {
        long hour = Math.floorMod(bid.dateTime, 86_400_000L) / 3_600_000L;
        String type = hour >= 8 && hour <= 18 ? "dayTime" : hour <= 6 || hour >= 20 ? "nightTime" : "otherTime";
        int count = 0;
        for (int i = 0; i < bid.extra.length(); i++) {
            if (bid.extra.charAt(i) == 'c') {
                count++;
            }
        }
        return bid.auction + "," + bid.bidder + "," + 0.908 * bid.price + "," + type + "," + bid.dateTime + "," + bid.extra + "," + count;
    }

    private static final Pattern CHANNEL_ID = Pattern.compile("channel_id=([0-9]+)");

    private static String channelId(String channel, String url) {
        switch (channel.toLowerCase()) {
            case "apple": return "0";
            case "google": return "1";
            case "facebook": return "2";
            case "baidu": return "3";
            default:
                Matcher matcher = CHANNEL_ID.matcher(url);
                return matcher.find() ? matcher.group(1) : null;
        }
    }

    private static String directories(Event.Bid bid) {
        String[] parts = bid.url.split("/");
        return bid.auction + "," + bid.bidder + "," + bid.price + "," + bid.channel
                + "," + part(parts, 3) + "," + part(parts, 4) + "," + part(parts, 5);
    }

    private static String part(String[] parts, int i) {
        return i < parts.length ? parts[i] : "";
    }

    /** Looks up the bid's value in the side input, which it loads when it opens. */
    private static final class SideValue extends RichMapFunction<Event, String> {
        private final String file;
        private transient Map<Long, String> values;

        SideValue(String file) {
            this.file = file;
        }

        @Override
        public void open(OpenContext context) throws IOException {
            values = new HashMap<>();
            for (String line : Files.readAllLines(Paths.get(file))) {
                int comma = line.indexOf(',');
                values.put(Long.parseLong(line.substring(0, comma)), line.substring(comma + 1));
            }
        }

        @Override
        public String map(Event event) {
            Event.Bid bid = event.bid;
            return bid.auction + "," + bid.bidder + "," + bid.price + "," + bid.dateTime + "," + values.get(bid.auction % 10000);
        }
    }

    private static final class LineOnly implements Encoder<Tuple2<Long, String>> {
        private final Lines lines = new Lines();

        @Override
        public void encode(Tuple2<Long, String> timedLine, OutputStream stream) throws IOException {
            lines.encode(timedLine.f1, stream);
        }
    }

    private static final class MinuteBuckets implements BucketAssigner<Tuple2<Long, String>, String> {
        private static final DateTimeFormatter FORMAT = DateTimeFormatter.ofPattern("yyyy-MM-dd/HH-mm").withZone(ZoneOffset.UTC);

        // Neighbours are mostly of one minute.
        private transient long minute;
        private transient String bucket;

        @Override
        public String getBucketId(Tuple2<Long, String> timedLine, Context context) {
            long minute = Math.floorDiv(timedLine.f0, 60_000L);
            if (bucket == null || minute != this.minute) {
                this.minute = minute;
                bucket = FORMAT.format(Instant.ofEpochMilli(timedLine.f0));
            }
            return bucket;
        }

        @Override
        public SimpleVersionedSerializer<String> getSerializer() {
            return SimpleVersionedStringSerializer.INSTANCE;
        }
    }
}
