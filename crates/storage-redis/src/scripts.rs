//! Embeds `lua/`: every script once, with the shared parts it needs in front of it.
//!
//! `Script::invoke_async` sends EVALSHA and, on NOSCRIPT, loads the script and tries again; nothing
//! had run by then, so the second try cannot do the work twice.

use std::sync::LazyLock;

use redis::Script;

macro_rules! script {
    ($name:ident = $($file:literal),+) => {
        script!(@ $name, "", $($file),+);
    };
    // Also where Redis has no memory left: for a few bytes without which nothing would make room again.
    (also_when_full $name:ident = $($file:literal),+) => {
        script!(@ $name, "#!lua flags=allow-oom\n", $($file),+);
    };
    (@ $name:ident, $head:literal, $($file:literal),+) => {
        pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(concat!($head, $(include_str!(concat!("../../../lua/", $file)), "\n"),+))
        });
    };
}

script!(
    ADMIT = "lib/gate.lua",
    "lib/record.lua",
    "lib/order_id.lua",
    "lib/order_entry.lua",
    "lib/reply.lua",
    "admit.lua"
);
script!(FENCE = "lib/gate.lua", "lib/reply.lua", "fence.lua");
script!(HOLDS_FENCE = "lib/gate.lua", "holds_fence.lua");
script!(LOAD = "lib/gate.lua", "load.lua");
script!(OPEN = "lib/gate.lua", "lib/order_id.lua", "lib/reply.lua", "open.lua");
script!(PUBLISH = "lib/gate.lua", "publish.lua");
script!(SET_SALE_STATE = "lib/gate.lua", "set_sale_state.lua");
script!(READ_SALE = "lib/gate.lua", "lib/order_id.lua", "lib/reply.lua", "read_sale.lua");
script!(DEAD_LETTER = "dead_letter.lua");
script!(UPDATE_DEAD_LETTER = "update_dead_letter.lua");
script!(STAMP_DEAD_LETTER = "lib/gate.lua", "stamp_dead_letter.lua");
script!(TRIM_ACKED = "lib/order_id.lua", "lib/reply.lua", "trim_acked.lua");
script!(
    OLDEST_UNAPPLIED = "lib/gate.lua",
    "lib/order_id.lua",
    "lib/reply.lua",
    "oldest_unapplied.lua"
);
script!(LEAVE_GROUP = "lib/reply.lua", "leave_group.lua");
script!(RELEASE = "lib/gate.lua", "lib/record.lua", "release.lua");
script!(REACQUIRE = "lib/gate.lua", "lib/record.lua", "reacquire.lua");
script!(ADJUST_STOCK = "lib/gate.lua", "adjust_stock.lua");
script!(CLAIM = "claim.lua");
script!(HOLD = "hold.lua");
script!(also_when_full COUNT_ATTEMPT = "count_attempt.lua");
script!(also_when_full COUNT_SUSPECTS = "count_suspects.lua");
script!(GATE_STATUS = "lib/gate.lua", "lib/order_id.lua", "lib/reply.lua", "gate_status.lua");
script!(PRUNE_CONSUMERS = "lib/reply.lua", "prune_consumers.lua");
script!(NEXT_DIRECT_ID = "lib/gate.lua", "lib/order_id.lua", "next_direct_id.lua");
/// Admission as it is, as a function of the script behind it.
pub(crate) static DRILL_ORDER: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("../../../lua/lib/gate.lua"),
        include_str!("../../../lua/lib/record.lua"),
        include_str!("../../../lua/lib/order_id.lua"),
        include_str!("../../../lua/lib/order_entry.lua"),
        include_str!("../../../lua/lib/reply.lua"),
        "local function admit()\n",
        include_str!("../../../lua/admit.lua"),
        "end\n",
        include_str!(concat!("../../../lua/", "drill_order.lua")),
    ))
});
script!(UNLOCK = "unlock.lua");
script!(EXTEND_LOCK = "extend_lock.lua");

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    fn lua_files(folder: &Path) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).expect("lua/ is there") {
            let path = entry.expect("a readable entry").path();
            if path.is_dir() {
                files.extend(lua_files(&path));
            } else if path.extension().is_some_and(|e| e == "lua") {
                files.push(path);
            }
        }
        files
    }

    #[test]
    fn every_script_is_embedded_and_has_a_header() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lua");
        let this_file = include_str!("scripts.rs");
        for path in lua_files(&root) {
            let name = path.strip_prefix(&root).expect("below lua/").display().to_string();
            assert!(this_file.contains(&format!("\"{name}\"")), "{name} is not embedded");
            let text = std::fs::read_to_string(&path).expect("a readable script");
            assert!(text.starts_with(&format!("-- {name}: ")), "{name}: first line is its purpose");
            if !name.starts_with("lib/") {
                assert!(
                    text.contains("-- KEYS[1]") && text.contains("-- Returns"),
                    "{name}: header"
                );
            }
        }
    }
}
