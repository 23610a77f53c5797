import java.io.BufferedReader;
import java.io.File;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * HDFS with one data node and YARN with node managers, on the loopback: {@code MiniCluster DIRECTORY NODE_MANAGERS}.
 *
 * <p>The first line of output is "ready". Then it obeys lines of standard input: {@code stop N} and {@code start N} for a
 * node manager. It ends when standard input ends, so no cluster outlives the tests.
 */
public class MiniCluster {
    private static final List<String> CLIENT_KEYS =
            List.of("fs.defaultFS", "dfs.replication", "yarn.resourcemanager.hostname", "yarn.application.classpath");

    public static void main(String[] arguments) {
        int code = 0;
        try {
            new MiniCluster().run(new File(arguments[0]).getAbsoluteFile(), Integer.parseInt(arguments[1]));
        } catch (Throwable failure) {
            failure.printStackTrace();
            code = 1;
        }
        Runtime.getRuntime().halt(code); // whatever threads still run
    }

    private void run(File directory, int nodes) throws Exception {
        YarnConfiguration settings = settings(directory);
        MiniDFSCluster files = new MiniDFSCluster.Builder(settings).numDataNodes(1).format(true).build();
        files.waitActive();
        settings.set("fs.defaultFS", "hdfs://127.0.0.1:" + files.getNameNodePort());
        openToAll(files.getFileSystem(), "/tmp", "/user", "/user/" + System.getProperty("user.name"), "/jobs");
        MiniYARNCluster yarn = new MiniYARNCluster("nodes", 1, nodes, 1, 1);
        yarn.init(settings);
        yarn.start();
        if (!yarn.waitForNodeManagersToConnect(120_000)) throw new IllegalStateException("node managers do not connect");
        writeClientFiles(new File(directory, "conf"), yarn.getConfig());
        System.out.println("ready");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            String[] words = order.trim().split(" ");
            if (words[0].equals("stop")) yarn.getNodeManager(Integer.parseInt(words[1])).stop();
            System.out.println("done " + order);
        }
    }

    private static YarnConfiguration settings(File directory) {
        YarnConfiguration settings = new YarnConfiguration();
        settings.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, new File(directory, "dfs").getPath());
        settings.set("hadoop.tmp.dir", new File(directory, "tmp").getPath());
        settings.setInt("dfs.replication", 1);
        settings.set("yarn.resourcemanager.hostname", "127.0.0.1");
        settings.set("yarn.nodemanager.hostname", "127.0.0.1");
        // The container executor runs no Hadoop of its own, so its class path is what Spark brings.
        settings.set("yarn.application.classpath", "");
        // The jars hold no capacity-scheduler.xml.
        settings.set("yarn.scheduler.capacity.root.queues", "default");
        settings.setInt("yarn.scheduler.capacity.root.default.capacity", 100);
        settings.setFloat("yarn.scheduler.capacity.maximum-am-resource-percent", 1.0f);
        settings.setInt("yarn.scheduler.minimum-allocation-mb", 128);
        settings.setInt("yarn.scheduler.maximum-allocation-mb", 4096);
        for (String prefix : new String[] {"", "yarn.minicluster."})
            settings.setInt(prefix + "yarn.nodemanager.resource.memory-mb", 4096);
        settings.setInt("yarn.nodemanager.resource.cpu-vcores", 8);
        settings.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
        settings.setBoolean("yarn.nodemanager.pmem-check-enabled", false);
        settings.setFloat("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", 99.9f);
        // A lost node is noticed while a test waits for it.
        settings.setInt("yarn.nm.liveness-monitor.expiry-interval-ms", 15_000);
        settings.setInt("yarn.resourcemanager.nodemanagers.heartbeat-interval-ms", 200);
        settings.setInt("yarn.nodemanager.delete.debug-delay-sec", 3600); // tests read the logs of containers
        return settings;
    }

    private static void openToAll(FileSystem files, String... directories) throws Exception {
        for (String each : directories) {
            files.mkdirs(new Path(each));
            files.setPermission(new Path(each), new FsPermission((short) 0777));
        }
    }

    /** Addresses only: the cluster's own settings name classes of Hadoop's tests, which clients lack. */
    private static void writeClientFiles(File directory, Configuration cluster) throws Exception {
        Configuration client = new Configuration(false);
        cluster.forEach(entry -> {
            String key = entry.getKey();
            boolean isAddress = key.startsWith("yarn.resourcemanager.") && key.endsWith("address");
            if (isAddress || CLIENT_KEYS.contains(key)) client.set(key, cluster.get(key));
        });
        directory.mkdirs();
        for (String name : new String[] {"core-site.xml", "hdfs-site.xml", "yarn-site.xml"})
            try (OutputStream file = new FileOutputStream(new File(directory, name))) {
                client.writeXml(file);
            }
    }
}
