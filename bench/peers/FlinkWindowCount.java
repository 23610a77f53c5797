import java.time.Duration;
import java.util.Locale;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;

/**
 * The window count in Flink's Java API, hashmap state backend: tumbling event-time windows by text key.
 *
 * <p>Arguments: records, keys, parallelism, checkpoint interval in ms, checkpoint directory. Prints one JSON line. The timed part is
 * {@code execute}. Object reuse is on: meant to favour Flink, and the program allows it.
 */
public final class FlinkWindowCount {

    private static final long WINDOW_MS = 100_000;

    private static final class Count implements AggregateFunction<Tuple2<String, Long>, Long, Long> {
        @Override
        public Long createAccumulator() {
            return 0L;
        }

        @Override
        public Long add(Tuple2<String, Long> value, Long accumulator) {
            return accumulator + 1;
        }

        @Override
        public Long getResult(Long accumulator) {
            return accumulator;
        }

        @Override
        public Long merge(Long one, Long other) {
            return one + other;
        }
    }

    private static Configuration configuration(String intervalMs, String directory) {
        Configuration configuration = new Configuration();
        configuration.setString("state.backend.type", "hashmap");
        configuration.setString("execution.checkpointing.interval", intervalMs + " ms");
        configuration.setString("execution.checkpointing.storage", "filesystem");
        configuration.setString("execution.checkpointing.dir", "file://" + directory);
        return configuration;
    }

    public static void main(String[] args) throws Exception {
        long records = Long.parseLong(args[0]);
        long keys = Long.parseLong(args[1]);
        int parallelism = Integer.parseInt(args[2]);
        long span = records / parallelism; // each subtask reads a range of its own: event time goes on in all of them alike
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(configuration(args[3], args[4]));
        env.setParallelism(parallelism);
        env.getConfig().enableObjectReuse();

        WatermarkStrategy<Long> times =
                WatermarkStrategy.<Long>forMonotonousTimestamps().withTimestampAssigner((x, before) -> x % span);
        env.fromSource(new NumberSequenceSource(0, records - 1), times, "numbers")
                .map(x -> Tuple2.of("key-" + (x * 2654435761L) % keys, x))
                .returns(Types.TUPLE(Types.STRING, Types.LONG))
                .keyBy(value -> value.f0, Types.STRING)
                .window(TumblingEventTimeWindows.of(Duration.ofMillis(WINDOW_MS)))
                .aggregate(new Count())
                .sinkTo(new DiscardingSink<>());

        long start = System.nanoTime();
        env.execute("window-count");
        double seconds = (System.nanoTime() - start) / 1e9;
        System.out.println(
                String.format(
                        Locale.ROOT,
                        "{\"engine\": \"flink-java\", \"records\": %d, \"keys\": %d, \"seconds\": %.3f, \"records_per_second\": %d}",
                        records,
                        keys,
                        seconds,
                        (long) (records / seconds)));
    }
}
