#!/usr/bin/env bash
# Says where the CPU time of gateway and Redis goes, by groups of functions, as a Markdown table.
#
#   target/release/bench --only accept --requests 200000 --rounds 1 --profile accept.perf
#   crates/bench/stages.sh accept.perf
#
# What the compiler has inlined counts with the function that it was inlined into.
set -euo pipefail

file=${1:?a file of perf record}

perf report --input "$file" --stdio --no-children --sort comm,dso,symbol --field-separator '|' 2>/dev/null |
	awk -F '|' '
		/^#/ || NF < 4 { next }
		{
			share = $1 + 0; program = $2; dso = $3; symbol = $4
			gsub(/^ +| +$/, "", program)
			program = program ~ /redis/ ? "Redis" : "gateway"
			if (program == "Redis" && symbol ~ /0x[0-9a-f]+/) stage = "its own code, stripped of names: Lua, stream, hashes, replies"
			else if (dso ~ /kernel/) stage = "kernel: sockets, waking, writing the file"
			else if (program == "Redis" && symbol ~ /lua|Lua|script|luaV|str_|match|sds.*lua/) stage = "Lua"
			else if (program == "Redis" && symbol ~ /stream|lp|rax|xadd/) stage = "stream"
			else if (program == "Redis" && symbol ~ /dict|hash|siphash|hset|hget/) stage = "hashes and dictionaries"
			else if (symbol ~ /malloc|free|realloc|calloc|je_|arena|tcache|_int_/) stage = "memory allocation"
			else if (program == "Redis") stage = "commands, replies, append-only file"
			else if (symbol ~ /sha2|hmac|jsonwebtoken|base64|crypto|signature/) stage = "token"
			else if (symbol ~ /metrics|AtomicBucket|quanta/) stage = "metrics"
			else if (symbol ~ /redis|combine/) stage = "Redis client"
			else if (symbol ~ /actix|httparse|http::|h1::|mime|url|percent/) stage = "HTTP"
			else if (symbol ~ /tokio|mio|futures|waker|std::time/) stage = "runtime"
			else if (symbol ~ /gateway::|flashsale/) stage = "our own code"
			else if (symbol ~ /serde|itoa|ryu|fmt/) stage = "JSON and formatting"
			else if (dso ~ /libc/) stage = "copying and comparing (libc)"
			else stage = "other"
			sum[program "|" stage] += share; total[program] += share
		}
		END {
			print "| process | stage | share of its CPU |\n|---|---|---:|"
			for (key in sum) {
				split(key, part, "|")
				printf "| %s | %s | %.0f %% |\n", part[1], part[2], 100 * sum[key] / total[part[1]] | "sort -t \"|\" -k2,2 -k4,4nr"
			}
		}'
