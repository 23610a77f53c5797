import java.time.Duration;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.CoGroupFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.api.java.tuple.Tuple5;
import org.apache.flink.api.java.tuple.Tuple6;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.assigners.SlidingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingProcessingTimeWindows;
import org.apache.flink.streaming.api.windowing.triggers.Trigger;
import org.apache.flink.streaming.api.windowing.triggers.TriggerResult;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/** The queries with windows: q5, q7, q8, q11 and q12. */
final class Windows {
    private static final Duration SIZE = Duration.ofSeconds(10);

    private Windows() {}

    static void q5(Nexmark job) {
        TypeInformation<Tuple3<Long, Long, Long>> count = Types.TUPLE(Types.LONG, Types.LONG, Types.LONG);
        job.write(
                job.timedEvents("bid.auction", "bid.dateTime")
                        .map(event -> event.bid.auction)
                        .returns(Types.LONG)
                        .keyBy(auction -> auction, Types.LONG)
                        .window(SlidingEventTimeWindows.of(SIZE, Duration.ofSeconds(2)))
                        .aggregate(new Count(), new CountAndEnd(), Types.LONG, Types.LONG, count)
                        .keyBy(counted -> counted.f2, Types.LONG)
                        .process(new MostBids(), Types.STRING));
    }

    static void q7(Nexmark job) {
        TypeInformation<Tuple5<Long, Long, Long, Long, String>> bid =
                Types.TUPLE(Types.LONG, Types.LONG, Types.LONG, Types.LONG, Types.STRING);
        TypeInformation<Tuple6<Long, Long, Long, Long, String, Long>> ended =
                Types.TUPLE(Types.LONG, Types.LONG, Types.LONG, Types.LONG, Types.STRING, Types.LONG);
        job.write(
                job.timedEvents("bid.auction", "bid.price", "bid.bidder", "bid.dateTime", "bid.extra")
                        .map(e -> Tuple5.of(e.bid.auction, e.bid.price, e.bid.bidder, e.bid.dateTime, e.bid.extra))
                        .returns(bid)
                        .keyBy(b -> b.f0, Types.LONG)
                        .window(TumblingEventTimeWindows.of(SIZE))
                        .reduce((a, b) -> higher(b.f1, b.f2, b.f3, a.f1, a.f2, a.f3) ? b : a, new WithEnd(), ended)
                        .keyBy(b -> b.f5, Types.LONG)
                        .process(new HighestBid(ended), Types.STRING));
    }

    static void q8(Nexmark job) {
        DataStream<Event> events =
                job.timedEvents("person.id", "person.name", "person.dateTime", "auction.seller", "auction.dateTime");
        TypeInformation<Tuple3<Long, String, Long>> person = Types.TUPLE(Types.LONG, Types.STRING, Types.LONG);
        DataStream<Tuple3<Long, String, Long>> persons =
                events.filter(event -> event.person != null)
                        .map(event -> Tuple3.of(event.person.id, event.person.name, event.person.dateTime))
                        .returns(person);
        DataStream<Long> sellers =
                events.filter(event -> event.auction != null).map(event -> event.auction.seller).returns(Types.LONG);
        job.write(
                persons.coGroup(sellers)
                        .where(p -> p.f0, Types.LONG)
                        .equalTo(seller -> seller, Types.LONG)
                        .window(TumblingEventTimeWindows.of(SIZE))
                        .apply(new NewSellers(), Types.STRING));
    }

    static void q11(Nexmark job) {
        job.write(
                job.timedEvents("bid.bidder", "bid.dateTime")
                        .map(event -> event.bid.bidder)
                        .returns(Types.LONG)
                        .keyBy(bidder -> bidder, Types.LONG)
                        .window(EventTimeSessionWindows.withGap(SIZE))
                        .aggregate(new Count(), new CountLine(), Types.LONG, Types.LONG, Types.STRING));
    }

    static void q12(Nexmark job) {
        job.write(
                job.events("bid.bidder")
                        .map(event -> event.bid.bidder)
                        .returns(Types.LONG)
                        .keyBy(bidder -> bidder, Types.LONG)
                        .window(TumblingProcessingTimeWindows.of(SIZE))
                        .trigger(new ProcessingTimeOrEndOfInput())
                        .aggregate(new Count(), new CountLine(), Types.LONG, Types.LONG, Types.STRING));
    }

    /** Whether the first bid (price, bidder, dateTime) ranks before the second one. */
    private static boolean higher(long price, long bidder, long time, long price2, long bidder2, long time2) {
        if (price != price2) {
            return price > price2;
        }
        return bidder != bidder2 ? bidder < bidder2 : time < time2;
    }

    private static final class Count implements AggregateFunction<Long, Long, Long> {
        @Override
        public Long createAccumulator() {
            return 0L;
        }

        @Override
        public Long add(Long value, Long count) {
            return count + 1;
        }

        @Override
        public Long getResult(Long count) {
            return count;
        }

        @Override
        public Long merge(Long a, Long b) {
            return a + b;
        }
    }

    /** Makes (auction, count, end of the window). */
    private static final class CountAndEnd extends ProcessWindowFunction<Long, Tuple3<Long, Long, Long>, Long, TimeWindow> {
        @Override
        public void process(Long auction, Context context, Iterable<Long> counts, Collector<Tuple3<Long, Long, Long>> out) {
            out.collect(Tuple3.of(auction, counts.iterator().next(), context.window().getEnd()));
        }
    }

    /** Makes the line {@code key,count,start,end}. */
    private static final class CountLine extends ProcessWindowFunction<Long, String, Long, TimeWindow> {
        @Override
        public void process(Long key, Context context, Iterable<Long> counts, Collector<String> out) {
            TimeWindow window = context.window();
            out.collect(key + "," + counts.iterator().next() + "," + window.getStart() + "," + window.getEnd());
        }
    }

    /** Keeps the auctions with the highest count of a window, and emits them when the window's end has passed. */
    private static final class MostBids extends KeyedProcessFunction<Long, Tuple3<Long, Long, Long>, String> {
        private transient ValueState<Long> most;
        private transient ListState<Long> auctions;

        @Override
        public void open(OpenContext context) {
            most = getRuntimeContext().getState(new ValueStateDescriptor<>("most", Types.LONG));
            auctions = getRuntimeContext().getListState(new ListStateDescriptor<>("auctions", Types.LONG));
        }

        @Override
        public void processElement(Tuple3<Long, Long, Long> counted, Context context, Collector<String> out) throws Exception {
            Long before = most.value();
            if (before == null) {
                context.timerService().registerEventTimeTimer(counted.f2);
            }
            if (before == null || counted.f1 > before) {
                most.update(counted.f1);
                auctions.clear();
                auctions.add(counted.f0);
            } else if (counted.f1.equals(before)) {
                auctions.add(counted.f0);
            }
        }

        @Override
        public void onTimer(long time, OnTimerContext context, Collector<String> out) throws Exception {
            for (Long auction : auctions.get()) {
                out.collect(auction + "," + most.value() + "," + context.getCurrentKey());
            }
            most.clear();
            auctions.clear();
        }
    }

    /** Adds the end of the window to the bid. */
    private static final class WithEnd
            extends ProcessWindowFunction<
                    Tuple5<Long, Long, Long, Long, String>, Tuple6<Long, Long, Long, Long, String, Long>, Long, TimeWindow> {
        @Override
        public void process(
                Long auction,
                Context context,
                Iterable<Tuple5<Long, Long, Long, Long, String>> bids,
                Collector<Tuple6<Long, Long, Long, Long, String, Long>> out) {
            Tuple5<Long, Long, Long, Long, String> bid = bids.iterator().next();
            out.collect(Tuple6.of(bid.f0, bid.f1, bid.f2, bid.f3, bid.f4, context.window().getEnd()));
        }
    }

    /** Keeps the highest of the highest bids of a window's auctions, and emits it when the window's end has passed. */
    private static final class HighestBid extends KeyedProcessFunction<Long, Tuple6<Long, Long, Long, Long, String, Long>, String> {
        private final TypeInformation<Tuple6<Long, Long, Long, Long, String, Long>> type;
        private transient ValueState<Tuple6<Long, Long, Long, Long, String, Long>> highest;

        HighestBid(TypeInformation<Tuple6<Long, Long, Long, Long, String, Long>> type) {
            this.type = type;
        }

        @Override
        public void open(OpenContext context) {
            highest = getRuntimeContext().getState(new ValueStateDescriptor<>("highest", type));
        }

        @Override
        public void processElement(Tuple6<Long, Long, Long, Long, String, Long> bid, Context context, Collector<String> out)
                throws Exception {
            Tuple6<Long, Long, Long, Long, String, Long> before = highest.value();
            if (before == null) {
                context.timerService().registerEventTimeTimer(bid.f5);
                highest.update(bid);
            } else if (before.f1.equals(bid.f1) && before.f2.equals(bid.f2) && before.f3.equals(bid.f3)) {
                if (bid.f0 < before.f0) {
                    highest.update(bid);
                }
            } else if (higher(bid.f1, bid.f2, bid.f3, before.f1, before.f2, before.f3)) {
                highest.update(bid);
            }
        }

        @Override
        public void onTimer(long time, OnTimerContext context, Collector<String> out) throws Exception {
            Tuple6<Long, Long, Long, Long, String, Long> bid = highest.value();
            out.collect(bid.f0 + "," + bid.f1 + "," + bid.f2 + "," + bid.f3 + "," + bid.f4 + "," + bid.f5);
            highest.clear();
        }
    }

    /** Emits the persons of a window who opened an auction in it. */
    private static final class NewSellers implements CoGroupFunction<Tuple3<Long, String, Long>, Long, String> {
        @Override
        public void coGroup(Iterable<Tuple3<Long, String, Long>> persons, Iterable<Long> sellers, Collector<String> out) {
            if (sellers.iterator().hasNext()) {
                for (Tuple3<Long, String, Long> person : persons) {
                    out.collect(person.f0 + "," + person.f1 + "," + TimeWindow.getWindowStartWithOffset(person.f2, 0, SIZE.toMillis()));
                }
            }
        }
    }

    /**
     * Fires at the end of a window of processing time, and at the end of the input.
     *
     * <p>Flink's own trigger drops the windows that are open when a bounded input ends. The last watermark, which comes without a
     * watermark strategy too, fires the timer at the end of event time.
     */
    private static final class ProcessingTimeOrEndOfInput extends Trigger<Object, TimeWindow> {
        @Override
        public TriggerResult onElement(Object element, long timestamp, TimeWindow window, TriggerContext context) {
            context.registerProcessingTimeTimer(window.maxTimestamp());
            context.registerEventTimeTimer(Long.MAX_VALUE);
            return TriggerResult.CONTINUE;
        }

        @Override
        public TriggerResult onProcessingTime(long time, TimeWindow window, TriggerContext context) {
            return TriggerResult.FIRE_AND_PURGE;
        }

        @Override
        public TriggerResult onEventTime(long time, TimeWindow window, TriggerContext context) {
            return TriggerResult.FIRE_AND_PURGE;
        }

        @Override
        public void clear(TimeWindow window, TriggerContext context) {
            context.deleteProcessingTimeTimer(window.maxTimestamp());
            context.deleteEventTimeTimer(Long.MAX_VALUE);
        }
    }
}
