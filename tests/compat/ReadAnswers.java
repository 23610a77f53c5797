import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.jar.JarFile;

import org.apache.flink.runtime.rest.messages.MessageHeaders;
import org.apache.flink.runtime.rest.util.RestMapperUtils;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JavaType;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;

/**
 * Reads answers as Flink's Java client does: with the class that Flink has for the path. Standard input has one JSON object a line,
 * with method, path (":jobid" for a parameter) and answer. Prints one line for each: the class, or "ERROR" and why it cannot be read.
 */
public class ReadAnswers {
    public static void main(String[] arguments) throws Exception {
        Map<String, MessageHeaders<?, ?, ?>> known = headers(arguments[0]);
        ObjectMapper mapper = RestMapperUtils.getFlexibleObjectMapper();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode asked = mapper.readTree(line);
            String path = asked.get("method").asText() + " " + asked.get("path").asText();
            MessageHeaders<?, ?, ?> headers = known.get(path);
            if (headers == null) {
                System.out.println("UNKNOWN " + path);
                continue;
            }
            try {
                JavaType type = headers.getResponseTypeParameters().isEmpty()
                        ? mapper.constructType(headers.getResponseClass())
                        : mapper.getTypeFactory().constructParametricType(
                                headers.getResponseClass(), headers.getResponseTypeParameters().toArray(new Class<?>[0]));
                Object read = mapper.readValue(mapper.treeAsTokens(asked.get("answer")), type);
                System.out.println("READ " + path + " " + read.getClass().getSimpleName() + " " + reason(read));
            } catch (Throwable error) {
                System.out.println("ERROR " + path + " " + error.toString().replace('\n', ' '));
            }
        }
    }

    /** The message of the failure in an answer about an operation or a job's end, so that the bytes of Java are read. */
    private static String reason(Object read) {
        for (String getter : new String[] {"resource", "getFailureCause", "getSerializedThrowable"}) {
            try {
                Object inside = read.getClass().getMethod(getter).invoke(read);
                if (inside instanceof java.util.Optional<?> maybe) {
                    inside = maybe.orElse(null);
                }
                if (inside instanceof Throwable failure) {
                    return failure.getMessage().replace('\n', ' ');
                }
                if (inside != null) {
                    return reason(inside);
                }
            } catch (ReflectiveOperationException missing) {
                // another kind of answer
            }
        }
        return "";
    }

    private static Map<String, MessageHeaders<?, ?, ?>> headers(String jar) throws Exception {
        Map<String, MessageHeaders<?, ?, ?>> found = new HashMap<>();
        try (JarFile file = new JarFile(jar)) {
            for (String name : (Iterable<String>) file.stream().map(entry -> entry.getName())::iterator) {
                if (!name.matches("org/apache/flink/runtime/(rest/messages|rest/handler|webmonitor)/.*Headers\\.class")) {
                    continue;
                }
                Class<?> one = Class.forName(name.replace('/', '.').replace(".class", ""));
                if (!MessageHeaders.class.isAssignableFrom(one) || Modifier.isAbstract(one.getModifiers())) {
                    continue;
                }
                MessageHeaders<?, ?, ?> headers = null;
                try {
                    headers = (MessageHeaders<?, ?, ?>) one.getMethod("getInstance").invoke(null);
                } catch (NoSuchMethodException noInstance) {
                    try {
                        headers = (MessageHeaders<?, ?, ?>) one.getField("INSTANCE").get(null);
                    } catch (NoSuchFieldException other) {
                        try {
                            var maker = one.getDeclaredConstructor();
                            maker.setAccessible(true);
                            headers = (MessageHeaders<?, ?, ?>) maker.newInstance();
                        } catch (NoSuchMethodException none) {
                            continue;
                        }
                    }
                }
                found.put(headers.getHttpMethod().name() + " " + headers.getTargetRestEndpointURL(), headers);
            }
        }
        return found;
    }
}
