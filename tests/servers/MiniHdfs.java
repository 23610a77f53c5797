import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** One name node and one data node on the loopback: {@code MiniHdfs PORT DIRECTORY}. What is in the directory stays. */
public class MiniHdfs {
    public static void main(String[] arguments) throws Exception {
        Configuration configuration = new Configuration();
        configuration.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, arguments[1]);
        configuration.set("dfs.replication", "1");
        boolean isNew = !new java.io.File(arguments[1], "name-0-1").exists();
        new MiniDFSCluster.Builder(configuration)
                .nameNodePort(Integer.parseInt(arguments[0]))
                .numDataNodes(1)
                .format(isNew)
                .manageDataDfsDirs(true)
                .build()
                .waitActive();
        System.out.println("ready");
        Thread.currentThread().join();
    }
}
