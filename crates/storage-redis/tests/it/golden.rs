//! Formats against their golden files (`tests/golden`): today's programs read every format that there ever
//! was, and write exactly one. Who changes what is written has to add a format.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use flashsale_domain::{EntryId, IdempotencyDigest, Sale};
use flashsale_storage_redis::{DeadLetter, RawEntry, Record, RecordItem, decode};
use redis::Value as Reply;
use serde_json::{Value, json};

use crate::support::{Deployment, sale, user};

/// The newest format of a kind that is read, and the one that is written. They differ for one release, the
/// first that knows a new one: the programs of the version before have to be able to read what is written
/// beside them.
#[derive(Clone, Copy)]
struct Formats {
    read: u32,
    written: u32,
}

const ENTRY: Formats = Formats { read: 2, written: 2 };
const RECORD: Formats = Formats { read: 2, written: 2 };
const DEAD_LETTER: Formats = Formats { read: 1, written: 1 };

const ID: EntryId = EntryId { ms: 1_764_470_400_000, seq: 7 };

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn read(name: &str) -> Value {
    let text = std::fs::read_to_string(folder().join(name));
    let text = text.unwrap_or_else(|error| panic!("{name}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn cases(name: &str) -> Vec<Value> {
    let Value::Array(cases) = read(name) else { panic!("{name} is no list") };
    assert!(!cases.is_empty(), "{name} is empty");
    cases
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// The cases of every format of a kind, and which they are of.
fn every_format(kind: &str, formats: Formats) -> Vec<(u32, Value)> {
    let of =
        |format| cases(&format!("{kind}-{format}.json")).into_iter().map(move |it| (format, it));
    (1..=formats.read).flat_map(of).collect()
}

fn raw_entry(case: &Value) -> RawEntry {
    let pairs = case["fields"].as_array().expect("fields");
    let bytes = |value: &Value| text(value).as_bytes().to_vec();
    RawEntry { id: ID, fields: pairs.iter().map(|it| (bytes(&it[0]), bytes(&it[1]))).collect() }
}

/// The script's text as the crate puts it together, from the crate's own list.
fn script(name: &str) -> String {
    let list = include_str!("../../src/scripts.rs");
    let last = format!("\"{name}.lua\"");
    let call = list.split("script!(").skip(1).find(|it| it.contains(&last)).expect(name);
    let call = call.split(';').next().expect("a call ends");
    let files = call.split('"').skip(1).step_by(2);
    let lua = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lua");
    files.map(|file| std::fs::read_to_string(lua.join(file)).expect(file) + "\n").collect()
}

/// A part of the scripts, with a line that uses it.
fn with_part(part: &str, line: &str) -> String {
    let lua = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lua/lib");
    std::fs::read_to_string(lua.join(part)).expect(part) + line
}

#[test]
fn there_is_a_golden_file_for_each_format_and_no_other() {
    let mut expected: Vec<String> =
        [("entry", ENTRY), ("record", RECORD), ("dead-letter", DEAD_LETTER)]
            .iter()
            .flat_map(|(kind, formats)| {
                (1..=formats.read).map(move |it| format!("{kind}-{it}.json"))
            })
            .chain(["README.md", "replies.json", "sale.json"].map(str::to_owned))
            .collect();
    expected.sort();
    let files = std::fs::read_dir(folder()).expect("the golden files");
    let name = |file: std::fs::DirEntry| file.file_name().into_string().expect("UTF-8");
    let mut found: Vec<String> = files.map(|file| name(file.expect("a file"))).collect();
    found.sort();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn an_entry_of_every_format_is_the_order_that_it_was() {
    let deployment = Deployment::empty().await;
    for (format, case) in every_format("entry", ENTRY) {
        let order = decode(deployment.partition, &raw_entry(&case))
            .unwrap_or_else(|error| panic!("format {format}: {case}: {error}"));
        assert_eq!((order.id.entry(), order.id.partition()), (ID, deployment.partition));
        let read = json!({
            "sale": order.sale_id.to_string(),
            "user": order.user_id.as_str(),
            "slot": order.slot,
            "epoch": order.epoch.to_string(),
            "digest": order.digest.as_ref().map(IdempotencyDigest::as_str),
        });
        assert_eq!(read, case["order"], "format {format}");
    }
}

#[tokio::test]
async fn the_entry_that_is_written_is_golden() {
    let deployment = Deployment::empty().await;
    deployment.open_gate().await;
    let add = with_part("order_entry.lua", "\nreturn add_order_entry(KEYS[1], '*', unpack(ARGV))");
    for case in cases(&format!("entry-{}.json", ENTRY.written)) {
        let order = &case["order"];
        let slot = order["slot"].to_string();
        let (sale, user, epoch) =
            (text(&order["sale"]), text(&order["user"]), text(&order["epoch"]));
        let or_nothing = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (digest, trace) = (or_nothing(&order["digest"]), or_nothing(&case["traceparent"]));
        let id: String = deployment
            .ask(&[
                "EVAL",
                &add,
                "1",
                &deployment.orders_key(),
                sale,
                user,
                &slot,
                epoch,
                &digest,
                &trace,
            ])
            .await;
        let id = id.parse().expect("an entry id");
        let entry = deployment.redis.find_entry(deployment.partition, id).await.expect("answered");
        assert_eq!(entry.expect("on the stream").fields, raw_entry(&case).fields, "{case}");
        let version = text(&case["fields"][0][1]).split(':').next();
        assert_eq!(version, Some(ENTRY.written.to_string().as_str()), "its version is its file's");
    }
}

fn as_json(record: &Record) -> Value {
    let item = |item: &RecordItem| {
        json!({
            "entry": item.entry.to_string(),
            "slot": item.slot,
            "generation": item.generation,
            "open": item.open,
            "digest": item.digest.as_ref().map(IdempotencyDigest::as_str),
        })
    };
    record.items.iter().map(item).collect()
}

#[tokio::test]
async fn a_record_of_every_format_is_read_alike_by_scripts_and_by_rust() {
    let deployment = Deployment::empty().await;
    let parse = with_part("record.lua", "\nreturn cjson.encode(parse_record(ARGV[1]))");
    for (format, case) in every_format("record", RECORD) {
        let record: Record = text(&case["text"]).parse().unwrap_or_else(|_| panic!("{case}"));
        assert_eq!(as_json(&record), case["orders"], "format {format}");
        let read: String = deployment.ask(&["EVAL", &parse, "0", text(&case["text"])]).await;
        let mut read: Value = serde_json::from_str(&read).expect("JSON");
        for order in read.as_array_mut().expect("a list") {
            let order = order.as_object_mut().expect("an order");
            let id = order.remove("id").expect("an id");
            order.insert("entry".to_owned(), id);
            if order["digest"] == "" {
                order.insert("digest".to_owned(), Value::Null);
            }
        }
        assert_eq!(read, case["orders"], "format {format}, by the scripts");
    }
}

#[tokio::test]
async fn the_record_that_is_written_is_golden() {
    let deployment = Deployment::empty().await;
    let write = with_part(
        "record.lua",
        "\nlocal items = {}
         for i, it in ipairs(parse_record(ARGV[1])) do
           items[i] = record_item(it.id, it.slot, it.generation, it.open, it.digest)
         end
         return { record_of(items), record_with(ARGV[1], items[1]) }",
    );
    let written = cases(&format!("record-{}.json", RECORD.written));
    // Whatever format it had before.
    for (format, case) in every_format("record", RECORD) {
        let same = |it: &&Value| it["orders"] == case["orders"];
        let expected = text(&written.iter().find(same).expect("the same as it is written")["text"]);
        assert!(expected.starts_with(&RECORD.written.to_string()), "its version is its file's");
        let record: Record = text(&case["text"]).parse().expect("a record");
        assert_eq!(record.to_string(), expected, "format {format}");
        let [whole, grown]: [String; 2] =
            deployment.ask(&["EVAL", &write, "0", text(&case["text"])]).await;
        assert_eq!(whole, expected, "format {format}, by the scripts");
        // What a script adds to bears the version of what it added.
        assert!(grown.starts_with(&RECORD.written.to_string()), "{grown}");
        let grown: Record = grown.parse().expect("a record");
        assert_eq!(grown.items.len(), record.items.len() + 1);
        assert_eq!(grown.items.first(), grown.items.last());
    }
}

#[tokio::test]
async fn a_dead_letter_of_every_format_is_read_and_what_is_written_is_golden() {
    for (format, case) in every_format("dead-letter", DEAD_LETTER) {
        let deployment = Deployment::empty().await;
        let golden = &case["letter"];
        let string = |value: &Value| text(value).to_owned();
        let number = |value: &Value| value.as_i64().expect("a number");
        let letter = DeadLetter {
            entry: raw_entry(golden),
            reason: string(&golden["reason"]),
            detail: string(&golden["detail"]),
            code: golden["code"].as_str().map(str::to_owned),
            attempts: u32::try_from(number(&golden["attempts"])).expect("few"),
            consumers: golden["consumers"].as_array().expect("a list").iter().map(string).collect(),
            epoch: golden["epoch"].as_i64(),
            first_ms: number(&golden["first_ms"]),
            last_ms: number(&golden["last_ms"]),
        };
        let (key, id) = (deployment.dead_key(), ID.to_string());
        deployment.set_field(&key, &id, text(&case["text"])).await;
        let read = deployment.redis.list_dead_letters(deployment.partition).await;
        assert_eq!(read.expect("readable"), std::slice::from_ref(&letter), "format {format}");
        if format == DEAD_LETTER.written {
            deployment.ask::<()>(&["DEL", &key]).await;
            deployment
                .redis
                .store_dead_letter(deployment.partition, &letter)
                .await
                .expect("stored");
            let written: String = deployment.ask(&["HGET", &key, &id]).await;
            assert_eq!(written, text(&case["text"]));
        }
    }
}

#[tokio::test]
async fn a_sale_in_redis_has_the_golden_fields() {
    let deployment = Deployment::selling(&sale(10)).await;
    let fields: BTreeMap<String, String> =
        deployment.ask(&["HGETALL", &deployment.sale_key()]).await;
    assert_eq!(json!(fields), read("sale.json"));
}

#[tokio::test]
async fn scripts_reply_as_ever_whichever_format_the_buyers_record_has() {
    for format in 1..=RECORD.read {
        let deployment = Deployment::selling(&Sale { per_buyer: 1, ..sale(2) }).await;
        let record = cases(&format!("record-{format}.json")).remove(0);
        let record = text(&record["text"]);
        deployment.set_field(&deployment.buyers_key(), "ann", record).await;
        deployment.set_field(&deployment.sale_key(), "held", "1").await;
        let key = |name: &Value| match text(name) {
            "gate" => deployment.gate_key(),
            "sale" => deployment.sale_key(),
            "buyers" => deployment.buyers_key(),
            "orders" => deployment.orders_key(),
            "dead" => deployment.dead_key(),
            "lost" => deployment.dead_key() + "-lost",
            "suspects" => deployment.dead_key() + "-suspects",
            other => panic!("there is no key {other}"),
        };
        for case in cases("replies.json") {
            for field in case["before"].as_array().into_iter().flatten() {
                deployment.set_field(&key(&field[0]), text(&field[1]), text(&field[2])).await;
            }
            let list = |name: &str| case[name].as_array().expect("a list").clone();
            let keys: Vec<String> = list("keys").iter().map(key).collect();
            let mut call = vec!["EVAL".to_owned(), script(text(&case["script"]))];
            call.push(keys.len().to_string());
            call.extend(keys);
            call.extend(list("args").iter().map(|it| text(it).to_owned()));
            let call: Vec<&str> = call.iter().map(String::as_str).collect();
            let reply = reply_as_json(&deployment.ask::<Reply>(&call).await);
            assert!(
                matches(&reply, &case["reply"]),
                "format {format}: {case} was answered {reply}"
            );
        }
        let (home, ann) = (deployment.partition, user("ann"));
        let record = deployment.redis.find_record(home, sale(1).id, &ann).await;
        assert!(record.is_ok_and(|it| it.is_some()), "still readable");
    }
}

#[test]
fn every_script_of_a_running_sale_has_golden_replies() {
    // What these answer is a random token's or a counter's, takes a fence of one's own, or is a drill's.
    let others = ["drill_order", "extend_lock", "next_direct_id", "open", "unlock"];
    let called: Vec<String> =
        cases("replies.json").iter().map(|it| text(&it["script"]).to_owned()).collect();
    let lua = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lua");
    for file in std::fs::read_dir(lua).expect("the scripts") {
        let path = file.expect("a file").path();
        if path.extension().is_some_and(|it| it == "lua") {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            assert!(called.contains(&name) != others.contains(&name.as_str()), "{name}");
        }
    }
}

fn reply_as_json(reply: &Reply) -> Value {
    match reply {
        Reply::Nil => Value::Null,
        Reply::Int(number) => json!(number),
        Reply::BulkString(bytes) => json!(String::from_utf8_lossy(bytes)),
        Reply::SimpleString(text) => json!(text),
        Reply::Okay => json!("OK"),
        Reply::Array(values) => values.iter().map(reply_as_json).collect(),
        other => panic!("no script of ours answers {other:?}"),
    }
}

/// `<…>` in the golden reply stands for what is another at every run.
fn matches(reply: &Value, golden: &Value) -> bool {
    match (reply, golden) {
        (Value::Array(reply), Value::Array(golden)) => {
            reply.len() == golden.len() && reply.iter().zip(golden).all(|(a, b)| matches(a, b))
        }
        (reply, golden) => match golden.as_str() {
            Some("<time>") => reply.as_i64().is_some_and(|ms| ms > ID.ms.cast_signed()),
            Some("<number>") => reply.is_i64(),
            Some("<text>") => reply.is_string(),
            Some("<id>") => reply.as_str().is_some_and(|it| it.parse::<EntryId>().is_ok()),
            _ => reply == golden,
        },
    }
}
