import java.time.LocalDate;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.api.java.tuple.Tuple5;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** The queries that emit an update for each bid: q15 to q19. */
final class Updates {
    private static final long DAY = 86_400_000L;
    private static final TypeInformation<Tuple2<Long, Long>> PAIR = Types.TUPLE(Types.LONG, Types.LONG);
    private static final TypeInformation<Tuple4<Long, Long, Long, Long>> FOUR =
            Types.TUPLE(Types.LONG, Types.LONG, Types.LONG, Types.LONG);

    private Updates() {}

    static void q15(Nexmark job) {
        job.write(
                job.events("bid.auction", "bid.bidder", "bid.price", "bid.dateTime")
                        .map(e -> Tuple4.of(Math.floorDiv(e.bid.dateTime, DAY), e.bid.auction, e.bid.bidder, e.bid.price))
                        .returns(FOUR)
                        .keyBy(bid -> bid.f0, Types.LONG)
                        .process(new DayStatistics(), Types.STRING));
    }

    static void q16(Nexmark job) {
        TypeInformation<Tuple5<String, Long, Long, Long, Long>> bid =
                Types.TUPLE(Types.STRING, Types.LONG, Types.LONG, Types.LONG, Types.LONG);
        TypeInformation<Tuple2<String, Long>> key = Types.TUPLE(Types.STRING, Types.LONG);
        job.write(
                job.events("bid.auction", "bid.bidder", "bid.price", "bid.dateTime", "bid.channel")
                        .map(e -> Tuple5.of(e.bid.channel, e.bid.dateTime, e.bid.auction, e.bid.bidder, e.bid.price))
                        .returns(bid)
                        .keyBy(b -> Tuple2.of(b.f0, Math.floorDiv(b.f1, DAY)), key)
                        .process(new ChannelStatistics(), Types.STRING));
    }

    static void q17(Nexmark job) {
        TypeInformation<Tuple3<Long, Long, Long>> bid = Types.TUPLE(Types.LONG, Types.LONG, Types.LONG);
        job.write(
                job.events("bid.auction", "bid.price", "bid.dateTime")
                        .map(e -> Tuple3.of(e.bid.auction, Math.floorDiv(e.bid.dateTime, DAY), e.bid.price))
                        .returns(bid)
                        .keyBy(b -> Tuple2.of(b.f0, b.f1), PAIR)
                        .process(new AuctionStatistics(), Types.STRING));
    }

    static void q18(Nexmark job) {
        job.write(
                job.events("bid.auction", "bid.bidder", "bid.price", "bid.dateTime")
                        .map(e -> Tuple4.of(e.bid.auction, e.bid.bidder, e.bid.price, e.bid.dateTime))
                        .returns(FOUR)
                        .keyBy(b -> Tuple2.of(b.f1, b.f0), PAIR)
                        .process(new LastBid(), Types.STRING));
    }

    static void q19(Nexmark job) {
        job.write(
                job.events("bid.auction", "bid.bidder", "bid.price", "bid.dateTime")
                        .map(e -> Tuple4.of(e.bid.auction, e.bid.bidder, e.bid.price, e.bid.dateTime))
                        .returns(FOUR)
                        .keyBy(b -> b.f0, Types.LONG)
                        .process(new TopTen(), Types.STRING));
    }

    /** 1, 2 or 3: below 10,000, below 1,000,000, or more. */
    private static int rank(long price) {
        return price < 10_000 ? 1 : price < 1_000_000 ? 2 : 3;
    }

    private static String day(long day) {
        return LocalDate.ofEpochDay(day).toString();
    }

    private static StringBuilder append(StringBuilder line, long[] numbers, int count) {
        for (int i = 0; i < count; i++) {
            line.append(',').append(numbers[i]);
        }
        return line;
    }

    /**
     * The twelve numbers of q15 and q16: total and three ranks; distinct bidders and of each rank; distinct auctions and of each rank.
     *
     * <p>A map has the ranks seen of a bidder or an auction as bits. One more place in the array is free for the caller.
     */
    private abstract static class Statistics<K, T> extends KeyedProcessFunction<K, T, String> {
        static final int NUMBERS = 12;
        private transient ValueState<long[]> numbers;
        private transient MapState<Long, Integer> bidders;
        private transient MapState<Long, Integer> auctions;

        @Override
        public void open(OpenContext context) {
            numbers =
                    getRuntimeContext()
                            .getState(new ValueStateDescriptor<>("numbers", PrimitiveArrayTypeInfo.LONG_PRIMITIVE_ARRAY_TYPE_INFO));
            bidders = getRuntimeContext().getMapState(new MapStateDescriptor<>("bidders", Types.LONG, Types.INT));
            auctions = getRuntimeContext().getMapState(new MapStateDescriptor<>("auctions", Types.LONG, Types.INT));
        }

        long[] count(long auction, long bidder, long price, long greatest) throws Exception {
            long[] counted = numbers.value();
            if (counted == null) {
                counted = new long[NUMBERS + 1];
            }
            int rank = rank(price);
            counted[0]++;
            counted[rank]++;
            distinct(bidders, bidder, rank, counted, 4);
            distinct(auctions, auction, rank, counted, 8);
            counted[NUMBERS] = Math.max(counted[NUMBERS], greatest);
            numbers.update(counted);
            return counted;
        }

        private static void distinct(MapState<Long, Integer> seen, long id, int rank, long[] counted, int at) throws Exception {
            Integer found = seen.get(id);
            int before = found == null ? 0 : found;
            int after = before | 1 << rank;
            if (before == 0) {
                counted[at]++;
            }
            if (after != before) {
                counted[at + rank]++;
                seen.put(id, after);
            }
        }
    }

    private static final class DayStatistics extends Statistics<Long, Tuple4<Long, Long, Long, Long>> {
        @Override
        public void processElement(Tuple4<Long, Long, Long, Long> bid, Context context, Collector<String> out) throws Exception {
            long[] counted = count(bid.f1, bid.f2, bid.f3, 0);
            out.collect(append(new StringBuilder(96).append(day(bid.f0)), counted, NUMBERS).toString());
        }
    }

    private static final class ChannelStatistics extends Statistics<Tuple2<String, Long>, Tuple5<String, Long, Long, Long, Long>> {
        @Override
        public void processElement(Tuple5<String, Long, Long, Long, Long> bid, Context context, Collector<String> out)
                throws Exception {
            long[] counted = count(bid.f2, bid.f3, bid.f4, Math.floorMod(bid.f1, DAY) / 60_000L);
            long minute = counted[NUMBERS];
            StringBuilder line = new StringBuilder(112).append(bid.f0).append(',').append(day(Math.floorDiv(bid.f1, DAY))).append(',');
            line.append((char) ('0' + minute / 600)).append((char) ('0' + minute / 60 % 10)).append(':');
            line.append((char) ('0' + minute % 60 / 10)).append((char) ('0' + minute % 10));
            out.collect(append(line, counted, NUMBERS).toString());
        }
    }

    /** Total, three ranks, least price, greatest price, sum. */
    private static final class AuctionStatistics extends KeyedProcessFunction<Tuple2<Long, Long>, Tuple3<Long, Long, Long>, String> {
        private transient ValueState<long[]> numbers;

        @Override
        public void open(OpenContext context) {
            numbers =
                    getRuntimeContext()
                            .getState(new ValueStateDescriptor<>("numbers", PrimitiveArrayTypeInfo.LONG_PRIMITIVE_ARRAY_TYPE_INFO));
        }

        @Override
        public void processElement(Tuple3<Long, Long, Long> bid, Context context, Collector<String> out) throws Exception {
            long price = bid.f2;
            long[] counted = numbers.value();
            if (counted == null) {
                counted = new long[] {0, 0, 0, 0, price, price, 0};
            }
            counted[0]++;
            counted[rank(price)]++;
            counted[4] = Math.min(counted[4], price);
            counted[5] = Math.max(counted[5], price);
            counted[6] += price;
            numbers.update(counted);
            StringBuilder line = new StringBuilder(96).append(bid.f0).append(',').append(day(bid.f1));
            append(line, counted, 6).append(',').append((double) counted[6] / counted[0]).append(',').append(counted[6]);
            out.collect(line.toString());
        }
    }

    private static String line(Tuple4<Long, Long, Long, Long> bid) {
        return bid.f0 + "," + bid.f1 + "," + bid.f2 + "," + bid.f3;
    }

    /** Keeps time and price of the newest bid, and emits each bid that is newer. */
    private static final class LastBid extends KeyedProcessFunction<Tuple2<Long, Long>, Tuple4<Long, Long, Long, Long>, String> {
        private transient ValueState<Tuple2<Long, Long>> last;

        @Override
        public void open(OpenContext context) {
            last = getRuntimeContext().getState(new ValueStateDescriptor<>("last", PAIR));
        }

        @Override
        public void processElement(Tuple4<Long, Long, Long, Long> bid, Context context, Collector<String> out) throws Exception {
            Tuple2<Long, Long> before = last.value();
            if (before == null || bid.f3 > before.f0 || bid.f3.equals(before.f0) && bid.f2 > before.f1) {
                last.update(Tuple2.of(bid.f3, bid.f2));
                out.collect(line(bid));
            }
        }
    }

    /** Keeps the ten best bids in order, as triples of price, time and bidder, and emits each bid that enters with its rank. */
    private static final class TopTen extends KeyedProcessFunction<Long, Tuple4<Long, Long, Long, Long>, String> {
        private static final int SIZE = 10;
        private transient ValueState<long[]> best;

        @Override
        public void open(OpenContext context) {
            best =
                    getRuntimeContext()
                            .getState(new ValueStateDescriptor<>("best", PrimitiveArrayTypeInfo.LONG_PRIMITIVE_ARRAY_TYPE_INFO));
        }

        @Override
        public void processElement(Tuple4<Long, Long, Long, Long> bid, Context context, Collector<String> out) throws Exception {
            long[] before = best.value();
            int length = before == null ? 0 : before.length;
            int at = length;
            while (at > 0 && better(bid, before, at - 3)) {
                at -= 3;
            }
            if (at == 3 * SIZE) {
                return;
            }
            long[] after = new long[Math.min(length + 3, 3 * SIZE)];
            if (before != null) {
                System.arraycopy(before, 0, after, 0, at);
                System.arraycopy(before, at, after, at + 3, after.length - at - 3);
            }
            after[at] = bid.f2;
            after[at + 1] = bid.f3;
            after[at + 2] = bid.f1;
            best.update(after);
            out.collect(line(bid) + "," + (at / 3 + 1));
        }

        private static boolean better(Tuple4<Long, Long, Long, Long> bid, long[] kept, int at) {
            if (bid.f2 != kept[at]) {
                return bid.f2 > kept[at];
            }
            return bid.f3 != kept[at + 1] ? bid.f3 < kept[at + 1] : bid.f1 < kept[at + 2];
        }
    }
}
