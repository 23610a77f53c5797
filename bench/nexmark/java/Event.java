/**
 * One event of the input, as Jackson reads it. Exactly one of the three members is set.
 *
 * <p>A query names the fields that it needs ({@link Parse}); Jackson skips the other fields, and they stay null or zero here.
 */
public class Event {
    public Person person;
    public Auction auction;
    public Bid bid;

    public static class Person {
        public long id;
        public String name;
        public String city;
        public String state;
        public long dateTime;
    }

    public static class Auction {
        public long id;
        public String itemName;
        public long dateTime;
        public long expires;
        public long seller;
        public long category;
    }

    public static class Bid {
        public long auction;
        public long bidder;
        public long price;
        public String channel;
        public String url;
        public long dateTime;
        public String extra;
    }

    /** The event's own time, in epoch milliseconds. */
    public long time() {
        if (bid != null) {
            return bid.dateTime;
        }
        return auction != null ? auction.dateTime : person.dateTime;
    }
}
