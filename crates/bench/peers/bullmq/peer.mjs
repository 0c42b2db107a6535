// A peer of the bench: BullMQ takes a job, inserts the order with the one-per-buyer rule, acknowledges.
//
//   node peer.mjs fill <jobs>               puts the jobs into the queue
//   node peer.mjs work <concurrency>        works until it is ended
//
// REDIS_URL and DATABASE_URL say where. A job that fails is shown; nothing is tried again.

import { Queue, Worker } from 'bullmq';
import pg from 'pg';

const QUEUE = 'peer-orders';
const JOBS_PER_CALL = 1000;
const CONNECTIONS_MAX = 20;

const [command, argument] = process.argv.slice(2);
const number = Number(argument);
const redis = new URL(process.env.REDIS_URL);
const connection = { host: redis.hostname, port: Number(redis.port), maxRetriesPerRequest: null };

async function fill(jobs) {
  const queue = new Queue(QUEUE, { connection });
  for (let from = 0; from < jobs; from += JOBS_PER_CALL) {
    const count = Math.min(JOBS_PER_CALL, jobs - from);
    await queue.addBulk(Array.from({ length: count }, (_, i) => ({
      name: 'order',
      data: { id: from + i + 1, sale: 1, user: `b-${from + i}`, digest: 'AAAAAAAAAAA' },
      opts: { removeOnComplete: true },
    })));
  }
  await queue.close();
}

function work(concurrency) {
  const database = new pg.Pool({
    connectionString: process.env.DATABASE_URL,
    max: Math.min(concurrency, CONNECTIONS_MAX),
  });
  const insert = {
    name: 'insert',
    text: `INSERT INTO peer_orders (id, sale_id, user_id, digest, slot, epoch, state, price_amount,
             price_currency, pay_by_ms, committed_ms)
           VALUES ($1, $2, $3, $4, 1, 1, 'awaiting_payment', 9900, 'CNY', $5, $6)
           ON CONFLICT DO NOTHING`,
  };
  const worker = new Worker(QUEUE, async ({ data }) => {
    const now = Date.now();
    const values = [data.id, data.sale, data.user, data.digest, now + 900_000, now];
    await database.query({ ...insert, values });
  }, { connection, concurrency });
  worker.on('failed', (job, error) => console.error(`job ${job?.id}: ${error}`));
  worker.on('error', (error) => console.error(`${error}`));
}

if (command === 'fill' && number > 0) {
  await fill(number);
} else if (command === 'work' && number > 0) {
  work(number);
} else {
  console.error('usage: node peer.mjs fill <jobs> | work <concurrency>');
  process.exit(2);
}
