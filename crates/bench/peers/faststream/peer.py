"""A peer of the bench: FastStream reads a stream, inserts orders with the one-per-buyer rule, acknowledges.

    python peer.py fill <jobs>             puts the jobs into the stream
    python peer.py work one <workers>      one message at a time in each of so many workers
    python peer.py work batch <records>    so many messages at a time, one statement for all of them

REDIS_URL and DATABASE_URL say where. It works until it is ended.
"""

import asyncio
import logging
import os
import sys
import time

import asyncpg
from faststream import FastStream
from faststream.redis import RedisBroker, StreamSub
from pydantic import BaseModel

STREAM = "peer-orders"
GROUP = "peer"
CONNECTIONS_MAX = 20
JOBS_PER_CALL = 1000

COLUMNS = """id, sale_id, user_id, digest, slot, epoch, state, price_amount, price_currency,
    pay_by_ms, committed_ms"""
INSERT = f"""INSERT INTO peer_orders ({COLUMNS})
    VALUES ($1, $2, $3, $4, 1, 1, 'awaiting_payment', 9900, 'CNY', $5::bigint + 900000, $5::bigint)
    ON CONFLICT DO NOTHING"""
INSERT_MANY = f"""INSERT INTO peer_orders ({COLUMNS})
    SELECT id, sale, buyer, digest, 1, 1, 'awaiting_payment', 9900, 'CNY', $5::bigint + 900000, $5::bigint
    FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) AS new (id, sale, buyer, digest)
    ON CONFLICT DO NOTHING"""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Order(BaseModel):
    id: int
    sale: int
    user: str
    digest: str


def new_broker() -> RedisBroker:
    return RedisBroker(os.environ["REDIS_URL"], logger=None)


async def fill(jobs: int) -> None:
    broker = new_broker()
    await broker.connect()
    redis = broker._connection
    for start in range(0, jobs, JOBS_PER_CALL):
        pipeline = redis.pipeline()
        for number in range(start, min(start + JOBS_PER_CALL, jobs)):
            order = Order(id=number + 1, sale=1, user=f"b-{number}", digest="AAAAAAAAAAA")
            await broker.publish(order, stream=STREAM, pipeline=pipeline)
        await pipeline.execute()
    # From the first message on, although the group comes later than they do.
    await redis.xgroup_create(STREAM, GROUP, id="0")
    await broker.stop()


async def work(mode: str, number: int) -> None:
    broker = new_broker()
    database: asyncpg.Pool | None = None

    async def insert_one(order: Order) -> None:
        await database.execute(
            INSERT, order.id, order.sale, order.user, order.digest, now_ms()
        )

    async def insert_batch(orders: list[Order]) -> None:
        await database.execute(
            INSERT_MANY,
            [order.id for order in orders],
            [order.sale for order in orders],
            [order.user for order in orders],
            [order.digest for order in orders],
            now_ms(),
        )

    if mode == "batch":
        sub = StreamSub(STREAM, group=GROUP, consumer="one", batch=True, max_records=number)
        broker.subscriber(stream=sub)(insert_batch)
    else:
        sub = StreamSub(STREAM, group=GROUP, consumer="one", max_records=number)
        broker.subscriber(stream=sub, max_workers=number)(insert_one)

    database = await asyncpg.create_pool(
        os.environ["DATABASE_URL"], min_size=1, max_size=CONNECTIONS_MAX
    )
    await FastStream(broker, logger=None).run(log_level=logging.WARNING)


match sys.argv[1:]:
    case ["fill", jobs]:
        asyncio.run(fill(int(jobs)))
    case ["work", ("one" | "batch") as mode, number]:
        asyncio.run(work(mode, int(number)))
    case _:
        sys.exit(__doc__)
