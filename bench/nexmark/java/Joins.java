import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.api.java.tuple.Tuple6;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.co.KeyedCoProcessFunction;
import org.apache.flink.util.Collector;

/** The queries that join two kinds of events: q3, q4, q9 and q20. */
final class Joins {
    private static final long CATEGORY = 10;
    private static final Set<String> STATES = Set.of("OR", "ID", "CA");

    /** Name, city and state, with the id in front. */
    private static final TypeInformation<Tuple4<Long, String, String, String>> PERSON =
            Types.TUPLE(Types.LONG, Types.STRING, Types.STRING, Types.STRING);

    /** Auction, price, bidder and time. */
    private static final TypeInformation<Tuple4<Long, Long, Long, Long>> BID =
            Types.TUPLE(Types.LONG, Types.LONG, Types.LONG, Types.LONG);

    /** Id, item, seller, category, time and time of expiry. */
    private static final TypeInformation<Tuple6<Long, String, Long, Long, Long, Long>> AUCTION =
            Types.TUPLE(Types.LONG, Types.STRING, Types.LONG, Types.LONG, Types.LONG, Types.LONG);

    /** Id, item, category and seller. */
    private static final TypeInformation<Tuple4<Long, String, Long, Long>> ITEM =
            Types.TUPLE(Types.LONG, Types.STRING, Types.LONG, Types.LONG);

    private static final TypeInformation<Tuple2<Long, Long>> PAIR = Types.TUPLE(Types.LONG, Types.LONG);

    private Joins() {}

    static void q3(Nexmark job) {
        DataStream<Event> events =
                job.events(
                        "person.id", "person.name", "person.city", "person.state", "auction.id", "auction.seller", "auction.category");
        DataStream<Tuple2<Long, Long>> auctions =
                events.filter(event -> event.auction != null && event.auction.category == CATEGORY)
                        .map(event -> Tuple2.of(event.auction.seller, event.auction.id))
                        .returns(PAIR);
        DataStream<Tuple4<Long, String, String, String>> persons =
                events.filter(event -> event.person != null && STATES.contains(event.person.state))
                        .map(e -> Tuple4.of(e.person.id, e.person.name, e.person.city, e.person.state))
                        .returns(PERSON);
        job.write(
                auctions.keyBy(auction -> auction.f0, Types.LONG)
                        .connect(persons.keyBy(person -> person.f0, Types.LONG))
                        .process(new LocalItems(), Types.STRING));
    }

    static void q4(Nexmark job) {
        job.write(
                winningBids(job, false)
                        .map(won -> Tuple2.of(won.f0.f3, won.f1.f1))
                        .returns(PAIR)
                        .keyBy(price -> price.f0, Types.LONG)
                        .process(new AveragePrice(), Types.STRING));
    }

    static void q9(Nexmark job) {
        job.write(
                winningBids(job, true)
                        .map(
                                won ->
                                        won.f0.f0 + "," + won.f0.f1 + "," + won.f0.f2 + "," + won.f0.f3 + "," + won.f1.f1 + ","
                                                + won.f1.f2 + "," + won.f1.f3)
                        .returns(Types.STRING));
    }

    static void q20(Nexmark job) {
        DataStream<Event> events =
                job.events(
                        "bid.auction", "bid.price", "bid.bidder", "bid.dateTime",
                        "auction.id", "auction.itemName", "auction.category", "auction.seller");
        DataStream<Tuple4<Long, Long, Long, Long>> bids = bids(events);
        DataStream<Tuple4<Long, String, Long, Long>> auctions =
                events.filter(event -> event.auction != null && event.auction.category == CATEGORY)
                        .map(e -> Tuple4.of(e.auction.id, e.auction.itemName, e.auction.category, e.auction.seller))
                        .returns(ITEM);
        job.write(
                bids.keyBy(bid -> bid.f0, Types.LONG)
                        .connect(auctions.keyBy(auction -> auction.f0, Types.LONG))
                        .process(new BidsOfItems(), Types.STRING));
    }

    private static DataStream<Tuple2<Tuple6<Long, String, Long, Long, Long, Long>, Tuple4<Long, Long, Long, Long>>> winningBids(
            Nexmark job, boolean withItem) {
        DataStream<Event> events =
                withItem
                        ? job.timedEvents(
                                "bid.auction", "bid.price", "bid.bidder", "bid.dateTime",
                                "auction.id", "auction.itemName", "auction.seller", "auction.category", "auction.dateTime",
                                "auction.expires")
                        : job.timedEvents(
                                "bid.auction", "bid.price", "bid.dateTime",
                                "auction.id", "auction.category", "auction.dateTime", "auction.expires");
        DataStream<Tuple6<Long, String, Long, Long, Long, Long>> auctions =
                events.filter(event -> event.auction != null)
                        .map(
                                e ->
                                        Tuple6.of(
                                                e.auction.id,
                                                withItem ? e.auction.itemName : "",
                                                e.auction.seller,
                                                e.auction.category,
                                                e.auction.dateTime,
                                                e.auction.expires))
                        .returns(AUCTION);
        return auctions.keyBy(auction -> auction.f0, Types.LONG)
                .connect(bids(events).keyBy(bid -> bid.f0, Types.LONG))
                .process(new WinningBid(), Types.TUPLE(AUCTION, BID));
    }

    private static DataStream<Tuple4<Long, Long, Long, Long>> bids(DataStream<Event> events) {
        return events.filter(event -> event.bid != null)
                .map(e -> Tuple4.of(e.bid.auction, e.bid.price, e.bid.bidder, e.bid.dateTime))
                .returns(BID);
    }

    /** Keeps a person, and the auctions that arrive before the person. */
    private static final class LocalItems
            extends KeyedCoProcessFunction<Long, Tuple2<Long, Long>, Tuple4<Long, String, String, String>, String> {
        private transient ValueState<Tuple4<Long, String, String, String>> seller;
        private transient ListState<Long> waiting;

        @Override
        public void open(OpenContext context) {
            seller = getRuntimeContext().getState(new ValueStateDescriptor<>("seller", PERSON));
            waiting = getRuntimeContext().getListState(new ListStateDescriptor<>("waiting", Types.LONG));
        }

        @Override
        public void processElement1(Tuple2<Long, Long> auction, Context context, Collector<String> out) throws Exception {
            Tuple4<Long, String, String, String> person = seller.value();
            if (person == null) {
                waiting.add(auction.f1);
            } else {
                out.collect(line(person, auction.f1));
            }
        }

        @Override
        public void processElement2(Tuple4<Long, String, String, String> person, Context context, Collector<String> out)
                throws Exception {
            seller.update(person);
            for (Long auction : waiting.get()) {
                out.collect(line(person, auction));
            }
            waiting.clear();
        }

        private static String line(Tuple4<Long, String, String, String> person, Long auction) {
            return person.f1 + "," + person.f2 + "," + person.f3 + "," + auction;
        }
    }

    /**
     * Keeps the best bid of an auction, and emits auction and bid when the auction expires.
     *
     * <p>A bid can arrive before its auction, because the two come from different subtasks. Such a bid waits. When the watermark has
     * passed the waiting bid, its auction is later than the bid or has expired, so the bid is discarded.
     */
    private static final class WinningBid
            extends KeyedCoProcessFunction<
                    Long,
                    Tuple6<Long, String, Long, Long, Long, Long>,
                    Tuple4<Long, Long, Long, Long>,
                    Tuple2<Tuple6<Long, String, Long, Long, Long, Long>, Tuple4<Long, Long, Long, Long>>> {
        private transient ValueState<Tuple6<Long, String, Long, Long, Long, Long>> auction;
        private transient ValueState<Tuple4<Long, Long, Long, Long>> best;
        private transient ListState<Tuple4<Long, Long, Long, Long>> waiting;

        @Override
        public void open(OpenContext context) {
            auction = getRuntimeContext().getState(new ValueStateDescriptor<>("auction", AUCTION));
            best = getRuntimeContext().getState(new ValueStateDescriptor<>("best", BID));
            waiting = getRuntimeContext().getListState(new ListStateDescriptor<>("waiting", BID));
        }

        @Override
        public void processElement1(
                Tuple6<Long, String, Long, Long, Long, Long> opened,
                Context context,
                Collector<Tuple2<Tuple6<Long, String, Long, Long, Long, Long>, Tuple4<Long, Long, Long, Long>>> out)
                throws Exception {
            auction.update(opened);
            context.timerService().registerEventTimeTimer(opened.f5);
            for (Tuple4<Long, Long, Long, Long> bid : waiting.get()) {
                consider(opened, bid);
            }
            waiting.clear();
        }

        @Override
        public void processElement2(
                Tuple4<Long, Long, Long, Long> bid,
                Context context,
                Collector<Tuple2<Tuple6<Long, String, Long, Long, Long, Long>, Tuple4<Long, Long, Long, Long>>> out)
                throws Exception {
            Tuple6<Long, String, Long, Long, Long, Long> opened = auction.value();
            if (opened == null) {
                waiting.add(bid);
                // The next full second: one timer for many bids.
                context.timerService().registerEventTimeTimer((bid.f3 / 1000 + 1) * 1000);
            } else {
                consider(opened, bid);
            }
        }

        private void consider(Tuple6<Long, String, Long, Long, Long, Long> opened, Tuple4<Long, Long, Long, Long> bid)
                throws Exception {
            if (bid.f3 >= opened.f4 && bid.f3 <= opened.f5) {
                Tuple4<Long, Long, Long, Long> before = best.value();
                if (before == null || better(bid, before)) {
                    best.update(bid);
                }
            }
        }

        private static boolean better(Tuple4<Long, Long, Long, Long> a, Tuple4<Long, Long, Long, Long> b) {
            if (!a.f1.equals(b.f1)) {
                return a.f1 > b.f1;
            }
            return a.f3.equals(b.f3) ? a.f2 < b.f2 : a.f3 < b.f3;
        }

        @Override
        public void onTimer(
                long time,
                OnTimerContext context,
                Collector<Tuple2<Tuple6<Long, String, Long, Long, Long, Long>, Tuple4<Long, Long, Long, Long>>> out)
                throws Exception {
            Tuple6<Long, String, Long, Long, Long, Long> opened = auction.value();
            if (opened == null) {
                List<Tuple4<Long, Long, Long, Long>> newer = new ArrayList<>();
                for (Tuple4<Long, Long, Long, Long> bid : waiting.get()) {
                    if (bid.f3 >= time) {
                        newer.add(bid);
                    }
                }
                waiting.update(newer);
            } else if (time == opened.f5) {
                Tuple4<Long, Long, Long, Long> bid = best.value();
                if (bid != null) {
                    out.collect(Tuple2.of(opened, bid));
                }
                auction.clear();
                best.clear();
            }
        }
    }

    /** Emits number, sum and average of a category's prices so far. */
    private static final class AveragePrice extends KeyedProcessFunction<Long, Tuple2<Long, Long>, String> {
        private transient ValueState<Tuple2<Long, Long>> total;

        @Override
        public void open(OpenContext context) {
            total = getRuntimeContext().getState(new ValueStateDescriptor<>("total", PAIR));
        }

        @Override
        public void processElement(Tuple2<Long, Long> price, Context context, Collector<String> out) throws Exception {
            Tuple2<Long, Long> before = total.value();
            long n = before == null ? 1 : before.f0 + 1;
            long sum = before == null ? price.f1 : before.f1 + price.f1;
            total.update(Tuple2.of(n, sum));
            out.collect(price.f0 + "," + n + "," + sum + "," + (double) sum / n);
        }
    }

    /** Keeps an auction, and the bids that arrive before the auction. Bids of other categories wait for ever, as in a regular join. */
    private static final class BidsOfItems
            extends KeyedCoProcessFunction<Long, Tuple4<Long, Long, Long, Long>, Tuple4<Long, String, Long, Long>, String> {
        private transient ValueState<Tuple4<Long, String, Long, Long>> item;
        private transient ListState<Tuple4<Long, Long, Long, Long>> waiting;

        @Override
        public void open(OpenContext context) {
            item = getRuntimeContext().getState(new ValueStateDescriptor<>("item", ITEM));
            waiting = getRuntimeContext().getListState(new ListStateDescriptor<>("waiting", BID));
        }

        @Override
        public void processElement1(Tuple4<Long, Long, Long, Long> bid, Context context, Collector<String> out) throws Exception {
            Tuple4<Long, String, Long, Long> auction = item.value();
            if (auction == null) {
                waiting.add(bid);
            } else {
                out.collect(line(bid, auction));
            }
        }

        @Override
        public void processElement2(Tuple4<Long, String, Long, Long> auction, Context context, Collector<String> out)
                throws Exception {
            item.update(auction);
            for (Tuple4<Long, Long, Long, Long> bid : waiting.get()) {
                out.collect(line(bid, auction));
            }
            waiting.clear();
        }

        private static String line(Tuple4<Long, Long, Long, Long> bid, Tuple4<Long, String, Long, Long> auction) {
            return bid.f0 + "," + bid.f2 + "," + bid.f1 + "," + bid.f3 + "," + auction.f1 + "," + auction.f2 + "," + auction.f3;
        }
    }
}
