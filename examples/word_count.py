"""Counts the words of text files: files in, exactly-once files out.

    python examples/word_count.py [INPUT] [OUTPUT]

INPUT is a file or a directory. In batch mode a rolling sum gives its last result only, so each word is written once.
"""

import re
import sys
import tempfile
from pathlib import Path

from tidegate.common import Encoder, Types, WatermarkStrategy
from tidegate.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import BucketAssigner, FileSink, FileSource, StreamFormat

SAMPLE = """\
The tide rises, the tide falls,
The twilight darkens, the curlew calls;
Along the sea-sands damp and brown
The traveller hastens toward the town,
And the tide rises, the tide falls.
"""


def words(line: str) -> list[tuple[str, int]]:
    return [(word, 1) for word in re.findall(r"[a-z]+", line.lower())]


def count(source: str, target: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), source).build()
    sink = FileSink.for_row_format(target, Encoder.simple_string_encoder())
    (
        env.from_source(files, WatermarkStrategy.no_watermarks(), "lines", Types.STRING())
        .flat_map(words, output_type=Types.TUPLE([Types.STRING(), Types.LONG()]))
        .key_by(lambda pair: pair[0], key_type=Types.STRING())
        .sum(1)
        .map(lambda pair: f"{pair[0]} {pair[1]}", output_type=Types.STRING())
        .sink_to(sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build())
    )
    env.execute("word count")


def main() -> None:
    given = sys.argv[1:]
    home = Path(tempfile.mkdtemp(prefix="tidegate-words-"))
    sample = home / "sample.txt"
    sample.write_text(SAMPLE)
    source, target = given[0] if given else str(sample), given[1] if len(given) > 1 else str(home / "counts")
    count(source, target)
    print(f"counts are in {target}")


if __name__ == "__main__":
    main()
