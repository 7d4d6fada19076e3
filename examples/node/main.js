// Create a topic, read it back, watch it change, and hold a key: the contracts are read at run time.
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import { promisify } from "node:util";

const [brokerAddress, protos, ...controllerAddresses] = process.argv.slice(2);

const definition = loader.loadSync(
  ["raftlog/wire/broker/v1/broker.proto", "raftlog/wire/controller/v1/controller.proto"],
  { includeDirs: [protos], longs: Number, enums: String, defaults: true, keepCase: true },
);
const { broker, controller } = grpc.loadPackageDefinition(definition).raftlog.wire;
const plain = grpc.credentials.createInsecure();
const client = new broker.v1.Broker(brokerAddress, plain);

const deadline = () => ({ deadline: Date.now() + 20_000 });
const call = (target, method, request) => promisify(target[method].bind(target))(request, deadline());

// Returns once every unfenced broker shows the topic.
async function create(name) {
  const topic = { name, num_partitions: 3, replication_factor: -1 };
  const written = await call(client, "Write", {
    acks: "ACKS_VISIBLE",
    create_topics: { topics: [topic] },
  });
  // Each topic succeeds or fails independently; its error is in its result.
  for (const { error } of written.create_topics.topics) {
    if (error?.error_code) throw new Error(`${error.error_message} (field ${error.field})`);
  }
  return written.write.token;
}

// Reads the error of a whole call from the trailing metadata.
function explain(error) {
  const leader = error.metadata?.get("raftlog-leader-endpoint")[0];
  return `${error.details}${leader ? `; the leader is at ${leader}` : ""}`;
}

// Puts a key that exists as long as this program keeps its lease alive.
async function hold(key) {
  const granted = await call(client, "Write", {
    grant_lease: { name: "example in Node", ttl_ms: 10_000 },
  });
  const { lease_id } = granted.grant_lease;
  const { generation } = granted.write.token;
  const put = { key, value: Buffer.from("here"), lease_id, expected_offset: -1 }; // -1: absent.
  await call(client, "Write", { alter_key_values: { alterations: [put] } });
  // A running program repeats this every 2.5 s, and counts the TTL from when it sends.
  const kept = await call(client, "Write", { keep_lease_alive: { lease_id, generation } });
  console.log(`held: ${key} for ${kept.keep_lease_alive.ttl_ms} ms`);
  await call(client, "Write", { revoke_lease: { lease_id, generation } });
}

const name = "from-node";
const created = await create(name);
console.log(`created: ${name} at offset ${created.offset}`);

const { topics } = await call(client, "Metadata", { topics: [name] });
for (const topic of topics) {
  console.log(`read: ${topic.name} has ${topic.partitions.length} partitions`);
}

await create(name).catch((error) => console.log(`refused: ${error.message}`));

await call(client, "Write", {
  incremental_alter_configs: {
    resources: [
      { resource_type: 2, resource_name: name, configs: [{ name: "retention.ms", value: "1000" }] },
    ],
  },
});
const watch = client.Watch({
  selectors: [`topics/${name}`, `configs/topic/${name}`],
  since: created,
});
watch.on("error", () => {}); // The end of a cancelled call.
for await (const { changes, error } of watch) {
  if (error?.error_code) throw new Error(error.error_message);
  if (changes.length > 0) {
    console.log(`changed: ${changes[0].path} to ${changes[0].after}`);
    break;
  }
}
watch.cancel();

await hold(`live/${name}`);

// At a controller: one that does not lead names the leader.
for (const address of controllerAddresses) {
  const other = new controller.v1.Controller(address, plain);
  await call(other, "DescribeBrokers", {}).catch((error) => {
    console.log(`controller: ${explain(error)}`);
  });
  other.close();
}
client.close();
