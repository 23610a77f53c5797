import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import org.apache.flink.api.common.serialization.Encoder;

/**
 * Writes a text and the end of its line in one call.
 *
 * <p>Flink's stream of a local file has no buffer, so each call is a system call. Flink's own encoder makes two.
 */
final class Lines implements Encoder<String> {
    @Override
    public void encode(String line, OutputStream stream) throws IOException {
        stream.write((line + "\n").getBytes(StandardCharsets.UTF_8));
    }
}
