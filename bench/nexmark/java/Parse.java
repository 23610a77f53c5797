import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.flink.api.common.accumulators.LongCounter;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichFlatMapFunction;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.DeserializationFeature;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectReader;
import org.apache.flink.util.Collector;

/**
 * Parses a JSON line into an {@link Event} that has the needed fields only, and counts the lines.
 *
 * <p>A field is named {@code kind.field}, such as {@code bid.price}. Events of a kind without a needed field are skipped.
 */
public final class Parse extends RichFlatMapFunction<String, Event> {
    /** The name of the counter of lines. */
    public static final String LINES = "lines";

    private static final Map<String, Class<?>> KINDS =
            Map.of("person", Event.Person.class, "auction", Event.Auction.class, "bid", Event.Bid.class);

    private final String[] needed;
    private transient ObjectReader reader;
    private transient LongCounter lines;

    public Parse(String... needed) {
        this.needed = needed;
    }

    @Override
    public void open(OpenContext context) {
        lines = new LongCounter();
        getRuntimeContext().addAccumulator(LINES, lines);
        reader = reader(needed);
    }

    @Override
    public void flatMap(String line, Collector<Event> out) throws Exception {
        lines.add(1L);
        Event event = reader.readValue(line);
        if (event.bid != null || event.auction != null || event.person != null) {
            out.collect(event);
        }
    }

    /** Ignored properties are cheaper than set ones: the parser passes over a text without making a String of it. */
    static ObjectReader reader(String... needed) {
        Map<String, Set<String>> kept = new HashMap<>();
        for (String field : needed) {
            String[] parts = field.split("\\.");
            kept.computeIfAbsent(parts[0], kind -> new HashSet<>()).add(parts[1]);
        }
        ObjectMapper mapper = new ObjectMapper();
        mapper.disable(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES);
        List<String> otherKinds = new ArrayList<>();
        for (Map.Entry<String, Class<?>> kind : KINDS.entrySet()) {
            Set<String> fields = kept.get(kind.getKey());
            if (fields == null) {
                otherKinds.add(kind.getKey());
                continue;
            }
            String[] ignored =
                    Arrays.stream(kind.getValue().getFields())
                            .map(field -> field.getName())
                            .filter(name -> !fields.contains(name))
                            .toArray(String[]::new);
            mapper.configOverride(kind.getValue()).setIgnorals(JsonIgnoreProperties.Value.forIgnoredProperties(ignored));
        }
        mapper.configOverride(Event.class)
                .setIgnorals(JsonIgnoreProperties.Value.forIgnoredProperties(otherKinds.toArray(new String[0])));
        return mapper.readerFor(Event.class);
    }
}
