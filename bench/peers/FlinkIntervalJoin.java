import java.time.Duration;
import java.util.Locale;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.co.ProcessJoinFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * The interval join in Flink's Java API, hashmap state backend: the program of bench/interval_join.py.
 *
 * <p>Arguments: records of both sides together, keys, parallelism, checkpoint interval in ms, checkpoint directory. Prints one JSON
 * line. The timed part is {@code execute}. Object reuse is on.
 */
public final class FlinkIntervalJoin {

    private static final class Pairs
            extends ProcessJoinFunction<Tuple2<Long, Long>, Tuple2<Long, Long>, Tuple3<Long, Long, Long>> {
        @Override
        public void processElement(
                Tuple2<Long, Long> left, Tuple2<Long, Long> right, Context context, Collector<Tuple3<Long, Long, Long>> out) {
            out.collect(Tuple3.of(left.f0, left.f1, right.f1));
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

    private static KeyedStream<Tuple2<Long, Long>, Long> side(StreamExecutionEnvironment env, long side, long keys, long span) {
        TypeInformation<Tuple2<Long, Long>> pair = Types.TUPLE(Types.LONG, Types.LONG);
        WatermarkStrategy<Tuple2<Long, Long>> strategy =
                WatermarkStrategy.<Tuple2<Long, Long>>forMonotonousTimestamps().withTimestampAssigner((value, t) -> value.f1);
        return env.fromSource(new NumberSequenceSource(0, side - 1), WatermarkStrategy.noWatermarks(), "numbers")
                .map(x -> Tuple2.of((x % span) * 2654435761L % keys, x % span))
                .returns(pair)
                .assignTimestampsAndWatermarks(strategy)
                .keyBy(value -> value.f0, Types.LONG);
    }

    public static void main(String[] args) throws Exception {
        long records = Long.parseLong(args[0]);
        long keys = Long.parseLong(args[1]);
        int parallelism = Integer.parseInt(args[2]);
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(configuration(args[3], args[4]));
        env.setParallelism(parallelism);
        env.getConfig().enableObjectReuse();
        long side = records / 2;
        long span = side / parallelism;
        side(env, side, keys, span)
                .intervalJoin(side(env, side, keys, span))
                .between(Duration.ofMillis(-1000), Duration.ofMillis(1000))
                .process(new Pairs())
                .sinkTo(new DiscardingSink<>());

        long start = System.nanoTime();
        env.execute("interval-join");
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
