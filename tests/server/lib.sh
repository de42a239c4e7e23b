# Shared by the scripts of this folder: a server on a free port, curl against it, checks that count.
# Usage of each: SCRIPT PROGRAM SOURCE_DIR
set -u
thespis=$(realpath "$1")
source=$(realpath "$2")
work=$(mktemp -d)
cd "$work" || exit 1
export THESPIS_CHECKPOINT="$source/models/stage" THESPIS_VOICES="$work/voices"
passed=0
failed=0
server=""
J='Content-Type: application/json'

ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAILED: $*"; }

# serve NAME OPTIONS...: starts a server with its log in NAME.log and waits until it is ready; sets $B and $server.
serve() {
    name=$1; shift
    "$thespis" serve --port 0 --drain-delay 0 "$@" >"$name.out" 2>"$name.log" &
    server=$!
    B=""
    for _ in $(seq 600); do
        B=$(sed -n 's/.* on \(http:[^ ]*\).*/\1/p' "$name.log" | head -1)
        [ -n "$B" ] && [ "$(curl -s -o /dev/null -w '%{http_code}' "$B/ready")" = 200 ] && return
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    bad "the server did not get ready: $(tail -3 "$name.log")"
    finish
}
# Ends the server politely; its exit status must be 0.
stop() {
    kill -TERM "$server"
    wait "$server"
    got=$?
    [ "$got" -eq 0 ] && ok || bad "the server ended with $got: $(tail -3 "$name.log")"
    server=""
}
finish() {
    [ -n "$server" ] && kill -KILL "$server" 2>/dev/null
    [ -n "${KEEP:-}" ] && cp -r "$work" "$KEEP"; rm -rf "$work"
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
    exit
}

# get STATUS WORDS CURL_ARGUMENTS...: the status, and words that headers or body must hold.
get() {
    status=$1; words=$2; shift 2
    got=$(curl -s -m 60 -D head.txt -o body.txt -w '%{http_code}' "$@")
    curled=$?
    if [ "$curled" -ne 0 ]; then bad "$*: curl failed with $curled, status $got"; return; fi
    if [ "$got" != "$status" ]; then bad "$* gave $got, not $status: $(head -c 300 body.txt)"; return; fi
    if [ -n "$words" ] && ! cat head.txt body.txt | tr -d '\0' | grep -qF -- "$words"; then
        bad "$* did not say '$words': $(tr -d '\r' <head.txt | head -c 400) $(head -c 300 body.txt)"; return
    fi
    ok
}
# speak STATUS WORDS JSON: POST /v1/audio/speech
speak() { get "$1" "$2" "$B/v1/audio/speech" -H "$J" -d "$3"; }
tts() { get "$1" "$2" "$B/v1/tts" -H "$J" -d "$3"; }
same() { if cmp -s "$1" "$2"; then ok; else bad "$1 and $2 differ ($(wc -c <"$1") and $(wc -c <"$2") bytes)"; fi; }
# metric NAME: its value
metric() { curl -s "$B/metrics" | sed -n "s/^$1 //p"; }
# soon COMMAND...: true within a second?
soon() {
    for _ in $(seq 20); do
        "$@" && return 0
        sleep 0.05
    done
    return 1
}
