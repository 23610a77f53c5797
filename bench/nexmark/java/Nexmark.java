import com.sun.management.OperatingSystemMXBean;
import java.io.File;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import org.apache.flink.api.common.JobExecutionResult;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.reader.TextLineInputFormat;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.KafkaSourceBuilder;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.core.fs.Path;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.filesystem.bucketassigners.BasePathBucketAssigner;

/**
 * The Nexmark queries in Flink's Java API: JSON lines in, comma separated lines out, exactly once, a checkpoint each second.
 *
 * <p>README.md lists the options. Prints one JSON line when the job has finished. The timed part is {@code execute}.
 */
public final class Nexmark {
    private final Map<String, String> options;
    private final StreamExecutionEnvironment env;

    private Nexmark(Map<String, String> options, Configuration configuration) {
        this.options = options;
        env = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        env.setParallelism(Integer.parseInt(options.getOrDefault("parallelism", "2")));
        env.getConfig().enableObjectReuse();
    }

    public static void main(String[] args) throws Exception {
        Configuration configuration = new Configuration();
        Map<String, String> options = new HashMap<>();
        for (int i = 0; i < args.length; i += 2) {
            if (!args[i].startsWith("--") || i + 1 == args.length) {
                throw new IllegalArgumentException("Expected --name value, found: " + args[i]);
            }
            if (args[i].equals("--set")) {
                String[] parts = args[i + 1].split("=", 2);
                configuration.setString(parts[0], parts[1]);
            } else {
                options.put(args[i].substring(2), args[i + 1]);
            }
        }
        configuration.setString("state.backend.type", options.getOrDefault("backend", "hashmap"));
        configuration.setString("execution.checkpointing.incremental", "true");
        configuration.setString("execution.checkpointing.interval", options.getOrDefault("interval-ms", "1000") + " ms");
        configuration.setString("execution.checkpointing.storage", "filesystem");
        configuration.setString("execution.checkpointing.dir", uri(required(options, "checkpoints")));
        new Nexmark(options, configuration).run();
    }

    private void run() throws Exception {
        String query = required(options, "query");
        build(query);
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long start = System.nanoTime();
        JobExecutionResult result = env.execute("nexmark-" + query);
        double seconds = (System.nanoTime() - start) / 1e9;
        Long lines = result.getAccumulatorResult(Parse.LINES);
        System.out.println(
                String.format(
                        Locale.ROOT,
                        "{\"engine\": \"flink-java\", \"query\": \"%s\", \"seconds\": %.3f, \"records\": %d, \"cpu_seconds\": %.2f}",
                        query,
                        seconds,
                        lines,
                        system.getProcessCpuTime() / 1e9));
        System.out.flush();
    }

    private void build(String query) {
        switch (query) {
            case "q0": Stateless.q0(this); break;
            case "q1": Stateless.q1(this); break;
            case "q2": Stateless.q2(this); break;
            case "q3": Joins.q3(this); break;
            case "q4": Joins.q4(this); break;
            case "q5": Windows.q5(this); break;
            case "q7": Windows.q7(this); break;
            case "q8": Windows.q8(this); break;
            case "q9": Joins.q9(this); break;
            case "q10": Stateless.q10(this); break;
            case "q11": Windows.q11(this); break;
            case "q12": Windows.q12(this); break;
            case "q13": Stateless.q13(this); break;
            case "q14": Stateless.q14(this); break;
            case "q15": Updates.q15(this); break;
            case "q16": Updates.q16(this); break;
            case "q17": Updates.q17(this); break;
            case "q18": Updates.q18(this); break;
            case "q19": Updates.q19(this); break;
            case "q20": Joins.q20(this); break;
            case "q21": Stateless.q21(this); break;
            case "q22": Stateless.q22(this); break;
            default: throw new IllegalArgumentException("Unknown query: " + query + ". Use q0 to q22, without q6.");
        }
    }

    /** The events with the needed fields ({@code bid.price}), without event time. */
    DataStream<Event> events(String... needed) {
        return lines().flatMap(new Parse(needed)).returns(Types.POJO(Event.class)).name("parse");
    }

    /** The events with event time, at most four seconds out of order. The needed fields include the times. */
    DataStream<Event> timedEvents(String... needed) {
        return events(needed)
                .assignTimestampsAndWatermarks(
                        WatermarkStrategy.<Event>forBoundedOutOfOrderness(Duration.ofSeconds(4))
                                .withTimestampAssigner((event, t) -> event.time()));
    }

    /** Side input of q13: in the input directory unless an option names it. */
    String side() {
        return options.containsKey("side") ? options.get("side") : required(options, "input") + "/side.csv";
    }

    boolean kafka() {
        return options.containsKey("kafka-bootstrap");
    }

    Path output() {
        return new Path(uri(required(options, "output")));
    }

    void write(DataStream<String> lines) {
        if (kafka()) {
            lines.sinkTo(kafkaSink());
        } else {
            lines.sinkTo(
                    FileSink.forRowFormat(output(), new Lines())
                            .withBucketAssigner(new BasePathBucketAssigner<>())
                            .build());
        }
    }

    private DataStream<String> lines() {
        if (kafka()) {
            return env.fromSource(kafkaSource(), WatermarkStrategy.noWatermarks(), "lines");
        }
        File[] files = new File(required(options, "input")).listFiles((d, name) -> name.matches("part-\\d+\\.jsonl"));
        if (files == null || files.length == 0) {
            throw new IllegalArgumentException("No part-*.jsonl in " + options.get("input"));
        }
        Path[] paths = Arrays.stream(files).map(file -> new Path(file.toURI())).toArray(Path[]::new);
        // The line format cannot be split, so each file is one split.
        return env.fromSource(
                FileSource.forRecordStreamFormat(new TextLineInputFormat(), paths).build(), WatermarkStrategy.noWatermarks(), "lines");
    }

    private KafkaSource<String> kafkaSource() {
        KafkaSourceBuilder<String> builder =
                KafkaSource.<String>builder()
                        .setBootstrapServers(options.get("kafka-bootstrap"))
                        .setTopics(required(options, "kafka-in"))
                        .setStartingOffsets(OffsetsInitializer.earliest())
                        .setValueOnlyDeserializer(new SimpleStringSchema());
        if (!options.getOrDefault("kafka-unbounded", "false").equals("true")) {
            builder.setBounded(OffsetsInitializer.latest());
        }
        return builder.build();
    }

    private KafkaSink<String> kafkaSink() {
        String topic = required(options, "kafka-out");
        return KafkaSink.<String>builder()
                .setBootstrapServers(options.get("kafka-bootstrap"))
                .setRecordSerializer(
                        KafkaRecordSerializationSchema.builder()
                                .setTopic(topic)
                                .setValueSerializationSchema(new SimpleStringSchema())
                                .build())
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix(topic)
                .setProperty("transaction.timeout.ms", "900000")
                .build();
    }

    private static String uri(String directory) {
        return new File(directory).getAbsoluteFile().toURI().toString();
    }

    private static String required(Map<String, String> options, String name) {
        String value = options.get(name);
        if (value == null) {
            throw new IllegalArgumentException("Missing option: --" + name);
        }
        return value;
    }
}
