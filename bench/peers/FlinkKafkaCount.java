import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * Kafka to a keyed count of texts to Kafka, exactly once, hashmap state backend. Runs until it is ended.
 *
 * <p>Arguments: servers, input topic, output topic, parallelism, checkpoint interval in ms, checkpoint directory. Object reuse is on.
 */
public final class FlinkKafkaCount {

    private static final class Count extends KeyedProcessFunction<String, String, String> {
        private transient ValueState<Long> count;

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public void processElement(String value, Context context, Collector<String> out) throws Exception {
            Long seen = count.value();
            long n = seen == null ? 1 : seen + 1;
            count.update(n);
            int blank = value.indexOf(' ');
            out.collect(value.substring(0, blank) + " " + n + value.substring(blank));
        }
    }

    public static void main(String[] args) throws Exception {
        Configuration configuration = new Configuration();
        configuration.setString("state.backend.type", "hashmap");
        configuration.setString("execution.checkpointing.interval", args[4] + " ms");
        configuration.setString("execution.checkpointing.storage", "filesystem");
        configuration.setString("execution.checkpointing.dir", "file://" + args[5]);
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        env.setParallelism(Integer.parseInt(args[3]));
        env.getConfig().enableObjectReuse();
        KafkaSource<String> source =
                KafkaSource.<String>builder()
                        .setBootstrapServers(args[0])
                        .setTopics(args[1])
                        .setStartingOffsets(OffsetsInitializer.earliest())
                        .setValueOnlyDeserializer(new SimpleStringSchema())
                        .build();
        KafkaSink<String> sink =
                KafkaSink.<String>builder()
                        .setBootstrapServers(args[0])
                        .setRecordSerializer(
                                KafkaRecordSerializationSchema.builder()
                                        .setTopic(args[2])
                                        .setValueSerializationSchema(new SimpleStringSchema())
                                        .build())
                        .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                        .setTransactionalIdPrefix(args[2])
                        .setProperty("transaction.timeout.ms", "900000")
                        .build();
        env.fromSource(source, WatermarkStrategy.noWatermarks(), "texts")
                .keyBy(text -> text.substring(0, text.indexOf(' ')), Types.STRING)
                .process(new Count())
                .sinkTo(sink);
        env.execute("kafka-count");
    }
}
