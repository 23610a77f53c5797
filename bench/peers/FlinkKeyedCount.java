import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * The keyed count in Flink's Java API, hashmap state backend if no setting says otherwise.
 *
 * <p>Arguments: records, keys, parallelism, checkpoint interval in ms, checkpoint directory, then settings as {@code key=value}. Prints
 * one JSON line. The timed part is {@code execute}. Object reuse is on: meant to favour Flink, and the program allows it.
 */
public final class FlinkKeyedCount {

    private static final class Count extends KeyedProcessFunction<Long, Tuple2<Long, Long>, Tuple2<Long, Long>> {
        private transient ValueState<Long> count;

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public void processElement(Tuple2<Long, Long> value, Context context, Collector<Tuple2<Long, Long>> out) throws Exception {
            Long seen = count.value();
            long n = seen == null ? 1 : seen + 1;
            count.update(n);
            out.collect(Tuple2.of(value.f0, n));
        }
    }

    private static Configuration configuration(String intervalMs, String directory, List<String> settings) {
        Configuration configuration = new Configuration();
        configuration.setString("state.backend.type", "hashmap");
        configuration.setString("execution.checkpointing.interval", intervalMs + " ms");
        configuration.setString("execution.checkpointing.storage", "filesystem");
        configuration.setString("execution.checkpointing.dir", "file://" + directory);
        for (String setting : settings) {
            String[] parts = setting.split("=", 2);
            configuration.setString(parts[0], parts[1]);
        }
        return configuration;
    }

    public static void main(String[] args) throws Exception {
        long records = Long.parseLong(args[0]);
        long keys = Long.parseLong(args[1]);
        List<String> settings = Arrays.asList(args).subList(5, args.length);
        Configuration configuration = configuration(args[3], args[4], settings);
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        env.setParallelism(Integer.parseInt(args[2]));
        env.getConfig().enableObjectReuse();

        TypeInformation<Tuple2<Long, Long>> pair = Types.TUPLE(Types.LONG, Types.LONG);
        env.fromSource(new NumberSequenceSource(0, records - 1), WatermarkStrategy.noWatermarks(), "numbers")
                .map(x -> Tuple2.of((x * 2654435761L) % keys, x))
                .returns(pair)
                .keyBy(value -> value.f0, Types.LONG)
                .process(new Count())
                .sinkTo(new DiscardingSink<>());

        long start = System.nanoTime();
        env.execute("keyed-count");
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
