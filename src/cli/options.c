/* options.c - see options.h. */
#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"

#define MOST_CONFIG ((size_t)1 << 20)

enum kind { FLAG, INTEGER, LONG, NUMBER, TEXT, CHOICE, REFERENCE, REFERENCE_TEXT, KEY };

struct option {
    int commands;
    const char *group, *name, *value; /* "--name VALUE" */
    enum kind kind;
    size_t offset;       /* in cli_settings */
    double low, high;    /* of numbers; both ends allowed */
    const char *choice;  /* "wav pcm" */
    const char *initial; /* parsed as if given first; NULL: zero */
    const char *help;
};

#define AT(field) offsetof(struct cli_settings, field)
#define SERVER(field) offsetof(struct cli_settings, server.field)
#define EVERYTHING (CLI_BENCH | CLI_SPEAK | CLI_ENCODE | CLI_DECODE | CLI_INSPECT | CLI_CHECK | CLI_CONVERT | CLI_VOICE | CLI_SERVE)
#define ENGINE (CLI_BENCH | CLI_SPEAK | CLI_ENCODE | CLI_DECODE | CLI_CHECK | CLI_VOICE | CLI_SERVE)

static const struct option table[] = {
    {CLI_SPEAK, "Voice", "--voice", "NAME", TEXT, AT(voice), 0, 0, NULL, NULL,
     "A stored voice (thespis voice add makes one), or a voice file: a path that ends in .safetensors."},
    {CLI_SPEAK | CLI_VOICE | CLI_SERVE | CLI_INSPECT, "Voice", "--voices", "DIR", TEXT, AT(voices), 0, 0, NULL, NULL,
     "Where voices are stored. Default: the folder named by THESPIS_VOICES, else thespis/voices in XDG_DATA_HOME, else "
     "~/.local/share/thespis/voices."},
    {CLI_SPEAK | CLI_VOICE, "Voice", "--ref", "FILE", REFERENCE, 0, 0, 0, NULL, NULL,
     "A recording of the voice to clone (WAV, FLAC, Ogg, MP3, ...), or its codes (.npy, .json). Repeat it for up to 16 "
     "references."},
    {CLI_SPEAK | CLI_VOICE, "Voice", "--ref-text", "TEXT", REFERENCE_TEXT, 0, 0, 0, NULL, NULL,
     "The words spoken in the --ref before it. Begin it with <|speaker:N|> to bind the reference to that speaker of the text. A "
     "reference without its words clones worse."},
    {CLI_VOICE, "Voice", "--language", "TAG", TEXT, AT(language), 0, 0, NULL, NULL,
     "voice add: the language spoken, such as en or pt-BR. It is kept with the voice and changes no sound."},
    {CLI_VOICE, "Voice", "--replace", NULL, FLAG, AT(replace), 0, 0, NULL, NULL,
     "voice add: take the place of a voice of the same name."},

    {CLI_SPEAK, "Text", "--text-file", "FILE", TEXT, AT(text_file), 0, 0, NULL, NULL,
     "Read the text from FILE; - is standard input."},
    {CLI_SPEAK, "Text", "--strict-text", NULL, FLAG, AT(strict_text), 0, 0, NULL, NULL,
     "Refuse every special token of the tokenizer in the text except speaker tags."},

    {CLI_SPEAK | CLI_INSPECT, "Text", "--granularity", "NAME", CHOICE, AT(granularity), 0, 0, "auto none sentence clause", "auto",
     "Where a long text is cut: auto packs sentences into chunks of 300 bytes, none needs it to fit one prompt."},
    {CLI_SPEAK | CLI_INSPECT, "Text", "--chunk-bytes", "N", INTEGER, AT(chunk_bytes), 40, 4000, NULL, "300",
     "Target of a chunk in bytes."},
    {CLI_SPEAK, "Text", "--no-history", NULL, FLAG, AT(no_history), 0, 0, NULL, NULL,
     "Chunks do not hear what was said before them."},
    {CLI_SPEAK, "Text", "--srt", "FILE", TEXT, AT(srt), 0, 0, NULL, NULL,
     "Write where each chunk lies in the audio, as subtitles."},
    {CLI_SPEAK, "Text", "--batch", "FILE.jsonl", TEXT, AT(batch), 0, 0, NULL, NULL,
     "Render many takes: each line is {\"text\", \"out\"} and, if wanted, \"seed\", \"voice\", \"ref\", \"ref_text\", \"srt\". "
     "Files that "
     "are there already are kept, so a batch can be taken up again."},

    {CLI_SPEAK, "Sound", "--out", "FILE", TEXT, AT(out), 0, 0, NULL, "speech.wav",
     "Where the audio goes; - is standard output. A file appears under its name only when it is whole; until then it is "
     "FILE.part."},
    {CLI_DECODE, "Sound", "--out", "FILE", TEXT, AT(out), 0, 0, NULL, "decoded.wav",
     "Where the audio goes; - is standard output. A file appears under its name only when it is whole; until then it is "
     "FILE.part."},
    {CLI_ENCODE, "Codes", "--out", "FILE", TEXT, AT(out), 0, 0, NULL, "codes.npy",
     "Where the codes go: NumPy, int64, (codebooks, frames)."},
    {CLI_SPEAK | CLI_DECODE, "Sound", "--format", "FORMAT", CHOICE, AT(format), 0, 0, "wav wav32f pcm mp3 opus flac aac", NULL,
     "wav (16-bit), wav32f (32-bit float), pcm (raw 16-bit little-endian, mono), mp3, opus (Ogg), flac, or aac (ADTS). Default: "
     "what the "
     "ending "
     "of --out says (.mp3, .opus, .ogg, .flac, .aac), else wav."},
    {CLI_SPEAK | CLI_DECODE, "Sound", "--sample-rate", "N", INTEGER, AT(sample_rate), 8000, 48000, NULL, NULL,
     "Samples a second. Default: the codec's own 44100; opus always has 48000."},
    {CLI_SPEAK | CLI_DECODE, "Sound", "--bitrate", "N", INTEGER, AT(bitrate), 6, 320, NULL, NULL,
     "kb/s of mp3 (default: 128), aac (96) and opus (64)."},

    {CLI_SPEAK | CLI_INSPECT, "Picture", "--plot", "FILE.png", TEXT, AT(plot), 0, 0, NULL, NULL,
     "Draw a picture: of sound its waveform and spectrogram, with a mark where each chunk begins; of codes and voices their "
     "codes."},
    {CLI_SPEAK, "Picture", "--spectrogram", NULL, FLAG, AT(spectrogram), 0, 0, NULL, NULL,
     "Draw the spectrogram on standard error when all is said."},

    {CLI_SPEAK, "Drawing", "--seed", "N", LONG, AT(seed), 0, 9223372036854775807.0, NULL, NULL,
     "0 to 2^63-1. The same seed, text and voice give the same bytes. Default: drawn from the system and told at the end."},
    {CLI_SPEAK, "Drawing", "--temperature", "X", NUMBER, AT(temperature), 0, 5, NULL, "1.0", "Wilder above 1, tamer below."},
    {CLI_SPEAK, "Drawing", "--top-p", "X", NUMBER, AT(top_p), 1e-6, 1, NULL, "0.9",
     "Draw from the likeliest tokens that share this probability."},
    {CLI_SPEAK, "Drawing", "--top-k", "N", LONG, AT(top_k), 1, 2147483647, NULL, "2147483647",
     "Draw from the N likeliest tokens at most; code heads never use more than 30."},
    {CLI_SPEAK | CLI_CHECK, "Drawing", "--greedy", NULL, FLAG, AT(greedy), 0, 0, NULL, NULL,
     "Always the likeliest token. For checks: it loops audibly."},
    {CLI_SPEAK | CLI_SERVE, "Drawing", "--guard", NULL, FLAG, AT(guard), 0, 0, NULL, NULL,
     "End speech that loops for 4 seconds or falls silent for 3."},
    {CLI_SPEAK | CLI_CHECK, "Drawing", "--max-frames", "N", INTEGER, AT(max_frames), 1, 2048, NULL, NULL,
     "Stop after N frames of 46 ms. Default: as many as fit the context, at most 2048."},

    {CLI_SPEAK | CLI_DECODE, "Streaming", "--first-chunk", "N", INTEGER, AT(first_chunk), 1, 64, NULL, NULL,
     "Frames before the first audio. Default: 4. Changes latency, never a sample."},
    {CLI_SPEAK | CLI_DECODE, "Streaming", "--chunk", "N", INTEGER, AT(chunk), 1, 64, NULL, NULL,
     "At most N frames at once after that. Default: windows grow 6, 10, 12, 32, 64."},

    {CLI_CHECK, "Check", "--out", "DIR", TEXT, AT(out), 0, 0, NULL, NULL,
     "Write the arrays there as .npy files, under the reference's names."},
    {CLI_CHECK, "Check", "--frames", "FILE.npy", TEXT, AT(frames), 0, 0, NULL, NULL,
     "Force these labels, (n, 1 + codebooks) integers, the prompt in one piece and then a row a step."},
    {CLI_CHECK, "Check", "--layer-local", "DIR", TEXT, AT(layer_local), 0, 0, NULL, NULL,
     "Feed each layer alone from DIR's backbone_layer_inputs and tower_layer_inputs."},
    {CLI_CHECK, "Check", "--generate", NULL, FLAG, AT(generate), 0, 0, NULL, NULL, "Draw freely too: frames.npy."},
    {CLI_CHECK, "Check", "--against", "DIR", TEXT, AT(against), 0, 0, NULL, NULL,
     "Compare with the arrays in DIR and print the differences."},
    {CLI_CHECK, "Check", "--codec", "FILE", TEXT, AT(check_codec), 0, 0, NULL, NULL,
     "Instead of the network: encode this recording, or decode these codes with the checkpoint's codec."},
    {CLI_CHECK, "Check", "--no-act-quant", NULL, FLAG, AT(no_act_quant), 0, 0, NULL, NULL, "Do not quantise the experts' inputs."},

    {CLI_BENCH, "Bench", "--figures", NULL, FLAG, AT(figures), 0, 0, NULL, NULL,
     "The named figures of make gpu-check: up to 64 lanes, prefill, first audio, loading. For a GPU."},

    {CLI_ENCODE, "Recording", "--max-seconds", "X", NUMBER, AT(max_seconds), 0, 1e6, NULL, "0",
     "Refuse longer recordings; 0 sets no limit."},

    {CLI_SPEAK | CLI_ENCODE | CLI_DECODE | CLI_INSPECT | CLI_VOICE | CLI_BENCH | CLI_SERVE, "Model", "--checkpoint", "DIR", TEXT,
     AT(checkpoint), 0, 0, NULL, NULL,
     "Folder with config.json, tokenizer.json, *.safetensors and the codec. Default: the folder named by THESPIS_CHECKPOINT, else "
     "models/stage."},
    {CLI_SPEAK | CLI_ENCODE | CLI_DECODE | CLI_VOICE | CLI_BENCH | CLI_SERVE, "Model", "--codec", "FILE", TEXT, AT(codec), 0, 0,
     NULL, NULL,
     "codec.pth or codec.safetensors. Default: the one in the checkpoint's folder. encode and decode need nothing else."},
    {ENGINE, "Model", "--backend", "NAME", CHOICE, AT(backend), 0, 0, "auto cpu cuda", "auto",
     "Where the network runs. auto: on a CUDA device when there is one that can."},
    {ENGINE, "Model", "--device", "N", INTEGER, AT(device), 0, 1024, NULL, "0", "Which CUDA device."},
    {CLI_SPEAK | CLI_CHECK | CLI_BENCH | CLI_SERVE, "Model", "--precision", "NAME", CHOICE, AT(precision), 0, 0, "auto f32 bf16",
     "auto", "f32, or bf16: activations rounded where the reference rounds them. auto: bf16 on cuda, f32 on cpu."},
    {ENGINE, "Model", "--isa", "NAME", CHOICE, AT(isa), 0, 0, "auto portable avx2", "auto",
     "The CPU's instruction set; every choice gives the same bytes."},
    {ENGINE, "Model", "--threads", "N", INTEGER, AT(threads), 0, 256, NULL, "0", "0: one for each processor. Changes no byte."},
    {CLI_SPEAK | CLI_CHECK | CLI_SERVE, "Model", "--max-rows", "N", INTEGER, AT(max_rows), 2, 16384, NULL, NULL,
     "Context: rows of prompt and frames together. Default: 4096, or what the model has if that is less."},
    {CLI_SPEAK, "Model", "--lanes", "N", INTEGER, AT(lanes), 1, 64, NULL, "1",
     "Takes of a batch that are made together. Changes no byte."},
    {CLI_SPEAK, "Model", "--voice-slots", "N", INTEGER, AT(voice_slots), 0, 64, NULL, "1",
     "Voices whose prompt is kept ready, each as large as a lane. Changes no byte."},
    {CLI_SPEAK | CLI_SERVE, "Model", "--prefill-rows", "N", INTEGER, AT(prefill_rows), 1, 16384, NULL, "64",
     "Rows of a prompt that are fed at once. Changes no byte."},

    {CLI_SERVE, "Network", "--host", "ADDRESS", TEXT, SERVER(host), 0, 0, NULL, "127.0.0.1",
     "Where to listen: an address or a name; 0.0.0.0 or :: for all."},
    {CLI_SERVE, "Network", "--port", "N", INTEGER, SERVER(port), 0, 65535, NULL, "8080", "0: any free one, told at the start."},
    {CLI_SERVE, "Network", "--prefix", "/PATH", TEXT, SERVER(prefix), 0, 0, NULL, NULL, "In front of every path."},
    {CLI_SERVE, "Network", "--cors", "ORIGIN", TEXT, SERVER(cors), 0, 0, NULL, NULL,
     "Let pages of this origin, or of any (*), call. Off by default."},
    {CLI_SERVE, "Network", "--instance", "NAME", TEXT, SERVER(instance), 0, 0, NULL, NULL,
     "X-Instance of every answer. Default: the host's name and the port."},
    {CLI_SERVE, "Network", "--config", "FILE", TEXT, AT(config), 0, 0, NULL, NULL,
     "Options from a file: a line each, their own names without the dashes, then the value; # begins a comment. The command line "
     "wins."},
    {CLI_SERVE, "Access", "--api-key", "KEY", KEY, 0, 0, 0, NULL, NULL,
     "A key that clients must send (Authorization: Bearer KEY). Repeat it for more. Others on this machine can see command lines: "
     "a "
     "file is better."},
    {CLI_SERVE, "Access", "--api-key-file", "FILE", TEXT, SERVER(api_key_file), 0, 0, NULL, NULL,
     "Keys, one a line; read again on SIGHUP."},
    {CLI_SERVE, "Access", "--metrics-key", NULL, FLAG, SERVER(metrics_key), 0, 0, NULL, NULL, "/metrics needs a key, too."},
    {CLI_SERVE, "Access", "--media-dir", "DIR", TEXT, SERVER(media_dir), 0, 0, NULL, NULL,
     "References may name files in DIR. Off by default."},
    {CLI_SERVE, "Access", "--fetch", NULL, FLAG, SERVER(fetch), 0, 0, NULL, NULL,
     "References may name http(s) URLs of public addresses. Off by default."},
    {CLI_SERVE, "Answers", "--model", "NAME", TEXT, SERVER(model), 0, 0, NULL, "drama-3", "The name that clients see."},
    {CLI_SERVE, "Answers", "--default-format", "FORMAT", CHOICE, SERVER(default_format), 0, 0, "wav pcm mp3 opus flac aac", "mp3",
     "Of /v1/audio/speech when a client names none."},
    {CLI_SERVE, "Answers", "--strict-model", NULL, FLAG, SERVER(strict_model), 0, 0, NULL, NULL,
     "Other model names are 404. By default any name will do."},
    {CLI_SERVE, "Answers", "--strict-voice", NULL, FLAG, SERVER(strict_voice), 0, 0, NULL, NULL,
     "OpenAI's voice names (alloy, ...) are 400 unless stored. By default they mean the default voice."},
    {CLI_SERVE, "Answers", "--ignore-unknown-fields", NULL, FLAG, SERVER(ignore_unknown_fields), 0, 0, NULL, NULL,
     "Unknown fields of /v1/audio/speech are no mistake."},
    {CLI_SERVE, "Answers", "--ignore-instructions", NULL, FLAG, SERVER(ignore_instructions), 0, 0, NULL, NULL,
     "The field instructions is dropped, not refused."},
    {CLI_SERVE, "Answers", "--require-consent", NULL, FLAG, SERVER(require_consent), 0, 0, NULL, NULL,
     "Uploaded voices need the field consent."},
    {CLI_SERVE, "Limits", "--lanes", "N", INTEGER, AT(lanes), 1, 64, NULL, "16", "Requests that speak at a time. Changes no byte."},
    {CLI_SERVE, "Limits", "--queue", "N", INTEGER, SERVER(queue), 0, 1024, NULL, "64", "Requests in line for a lane; then 429."},
    {CLI_SERVE, "Limits", "--key-requests", "N", INTEGER, SERVER(key_requests), 0, 1024, NULL, NULL,
     "Requests of one API key at a time; then 429. 0, the default, sets no limit."},
    {CLI_SERVE, "Limits", "--max-queue-seconds", "X", NUMBER, SERVER(max_queue_seconds), 0, 3600, NULL, "60",
     "A request that has waited so long is answered with 429; 0 sets no limit."},
    {CLI_SERVE, "Limits", "--connections", "N", INTEGER, SERVER(connections), 1, 900, NULL, "256", "Connections at a time."},
    {CLI_SERVE, "Limits", "--max-body", "MIB", NUMBER, SERVER(max_body), 0.001, 1024, NULL, "64", "Largest body of a request."},
    {CLI_SERVE, "Limits", "--max-input-chars", "N", INTEGER, SERVER(max_input_chars), 0, 10000000, NULL, NULL,
     "Longest text. Default: 100000, and 4096 where it may not be cut."},
    {CLI_SERVE, "Limits", "--max-audio-seconds", "X", NUMBER, SERVER(max_audio_seconds), 1, 86400, NULL, "600",
     "Speech ends there, with the reason length."},
    {CLI_SERVE, "Limits", "--body-timeout", "X", NUMBER, SERVER(body_timeout), 0.1, 3600, NULL, "30",
     "Seconds for a body to come."},
    {CLI_SERVE, "Limits", "--write-timeout", "X", NUMBER, SERVER(write_timeout), 0.1, 3600, NULL, "60",
     "Seconds for a client to take a piece of an answer; then it is dropped."},
    {CLI_SERVE, "Limits", "--idle-timeout", "X", NUMBER, SERVER(idle_timeout), 0.1, 3600, NULL, "60",
     "Seconds that a connection may wait for its next request."},
    {CLI_SERVE, "Limits", "--allow-half-close", NULL, FLAG, SERVER(allow_half_close), 0, 0, NULL, NULL,
     "A client that closes its sending side alone has not gone. By default it has, for a killed one looks the same."},
    {CLI_SERVE, "Operation", "--drain-delay", "X", NUMBER, SERVER(drain_delay), 0, 3600, NULL, "5",
     "Seconds between SIGTERM and refusing new work."},
    {CLI_SERVE, "Operation", "--drain-timeout", "X", NUMBER, SERVER(drain_timeout), 0, 3600, NULL, "30",
     "Seconds that running speech then has to end."},
    {CLI_SERVE, "Operation", "--access-log", "FORM", CHOICE, SERVER(access_log), 0, 0, "text json off", "text",
     "A line for each request on standard error, without any text of a client's."},
    {CLI_SERVE, "Model", "--voice-slots", "N", INTEGER, AT(voice_slots), 0, 64, NULL, "4",
     "Voices whose prompt is kept ready, each as large as a lane. Changes no byte."},

    {CLI_INSPECT | CLI_CHECK | CLI_VOICE | CLI_BENCH, "Output", "--json", NULL, FLAG, AT(json), 0, 0, NULL, NULL, "Print JSON."},
    {CLI_INSPECT, "Voice", "--ref", "FILE", REFERENCE, 0, 0, 0, NULL, NULL, "inspect prompt: codes of a reference (.npy, .json)."},
    {CLI_INSPECT, "Voice", "--ref-text", "TEXT", REFERENCE_TEXT, 0, 0, 0, NULL, NULL, "The words spoken in the --ref before it."},
    {ENGINE | CLI_CONVERT, "Output", "--quiet", NULL, FLAG, AT(quiet), 0, 0, NULL, NULL, "No progress and no closing line."},
    {EVERYTHING, "Output", "--help", NULL, FLAG, AT(help), 0, 0, NULL, NULL, "Print this."},
};

#define OPTION_COUNT (sizeof table / sizeof *table)

/* ---- parsing ----------------------------------------------------------------------------------------------------------------- */

static int in_list(const char *word, const char *list)
{
    size_t n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at++)
        if (n > 0 && (at == list || at[-1] == ' ') && (at[n] == '\0' || at[n] == ' ')) return 1;
    return 0;
}

static int take_integer(const struct option *o, const char *value, int64_t *out, char *message)
{
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    if (end == value || *end != '\0' || errno != 0 || (double)number < o->low || (double)number > o->high || value[0] == ' ' ||
        value[0] == '+') {
        char most[32] = "2^63-1"; /* which is no double */
        if (o->high < 0x1p63) snprintf(most, sizeof most, "%.0f", o->high);
        snprintf(message, 300, "%s is '%s', must be a whole number from %.0f to %s", o->name, value, o->low, most);
        return -1;
    }
    *out = number;
    return 0;
}

static int take_number(const struct option *o, const char *value, double *out, char *message)
{
    char *end;
    double number = strtod(value, &end);
    if (end == value || *end != '\0' || !(number >= o->low && number <= o->high)) {
        snprintf(message, 300, "%s is '%s', must be a number from %g to %g", o->name, value, o->low, o->high);
        return -1;
    }
    *out = number;
    return 0;
}

static int take_reference(const struct option *o, const char *value, struct cli_settings *s, char *message)
{
    if (o->kind == REFERENCE) {
        if (s->ref_count == THESPIS_MAX_SPEAKERS) {
            snprintf(message, 300, "more than %d --ref", THESPIS_MAX_SPEAKERS);
            return -1;
        }
        s->refs[s->ref_count++] = value;
        return 0;
    }
    if (s->ref_count == 0 || s->ref_texts[s->ref_count - 1] != NULL) {
        snprintf(message, 300, "--ref-text must follow the --ref whose words it gives");
        return -1;
    }
    s->ref_texts[s->ref_count - 1] = value;
    return 0;
}

static int take_key(const char *value, struct cli_settings *s, char *message)
{
    if (s->server.api_key_count == TH_SERVER_MAX_KEYS) {
        snprintf(message, 300, "more than %d --api-key: put them into a file (--api-key-file)", TH_SERVER_MAX_KEYS);
        return -1;
    }
    s->server.api_keys[s->server.api_key_count++] = value;
    return 0;
}

static int take(const struct option *o, const char *value, struct cli_settings *s, char *message)
{
    char *field = (char *)s + o->offset;
    int64_t integer;
    switch (o->kind) {
    case FLAG: *(int *)field = 1; return 0;
    case TEXT: *(const char **)field = value; return 0;
    case NUMBER: return take_number(o, value, (double *)field, message);
    case LONG: return take_integer(o, value, (int64_t *)field, message);
    case INTEGER:
        if (take_integer(o, value, &integer, message) != 0) return -1;
        *(int *)field = (int)integer;
        return 0;
    case CHOICE:
        if (!in_list(value, o->choice)) {
            snprintf(message, 300, "%s is '%s', must be one of: %s", o->name, value, o->choice);
            return -1;
        }
        *(const char **)field = value;
        return 0;
    case KEY: return take_key(value, s, message);
    default: return take_reference(o, value, s, message);
    }
}

static const struct option *find(const struct cli_command *command, const char *name, size_t n)
{
    for (size_t i = 0; i < OPTION_COUNT; i++)
        if ((table[i].commands & command->bit) && strlen(table[i].name) == n && memcmp(table[i].name, name, n) == 0)
            return &table[i];
    return NULL;
}

static void set_defaults(const struct cli_command *command, struct cli_settings *s)
{
    char unused[300];
    memset(s, 0, sizeof *s);
    s->seed = -1;
    s->prefill_rows = 64;
    for (size_t i = 0; i < OPTION_COUNT; i++)
        if ((table[i].commands & command->bit) && table[i].initial != NULL) take(&table[i], table[i].initial, s, unused);
}

/* argv[*at] is an option; *at moves past its value. */
static int parse_option(const struct cli_command *command, int argc, char **argv, int *at, struct cli_settings *s, char *message)
{
    const char *word = argv[*at], *equal = strchr(word, '=');
    size_t n = equal != NULL ? (size_t)(equal - word) : strlen(word);
    const struct option *o = strcmp(word, "-h") == 0 ? find(command, "--help", 6) : find(command, word, n);
    if (o == NULL) {
        snprintf(message, 300, "%s has no option '%.*s'", command->name, (int)(n > 100 ? 100 : n), word);
        return -1;
    }
    if (!(o->commands & CLI_VOICE)) s->speak_option = o->name;
    if (o->kind == FLAG && equal != NULL) {
        snprintf(message, 300, "%s takes no value", o->name);
        return -1;
    }
    if (o->kind == FLAG) return take(o, NULL, s, message);
    if (equal != NULL) return take(o, equal + 1, s, message);
    if (*at + 1 >= argc) {
        snprintf(message, 300, "%s needs a value: %s %s", o->name, o->name, o->value);
        return -1;
    }
    return take(o, argv[++*at], s, message);
}

/* The word after --config, wherever it stands; the file counts before the command line. */
static const char *config_named(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--config") == 0 && i + 1 < argc) return argv[i + 1];
        if (strncmp(argv[i], "--config=", 9) == 0) return argv[i] + 9;
    }
    return NULL;
}

/* "name value" or "name = value" as the option it is. */
static int take_line(const struct cli_command *command, char *line, int number, struct cli_settings *s, char *message)
{
    char *name = line + strspn(line, " \t-"), word[64], reason[300];
    size_t n = strcspn(name, " \t=");
    char *value = name + n + strspn(name + n, " \t");
    if (*value == '=') value += 1 + strspn(value + 1, " \t");
    for (size_t end = strlen(value); end > 0 && strchr(" \t\r", value[end - 1]) != NULL; end--) value[end - 1] = '\0';
    if (name[0] == '\0' || name[0] == '#' || name[0] == '\r') return 0;
    snprintf(word, sizeof word, "--%.*s", (int)n, name);
    const struct option *o = find(command, word, strlen(word));
    if (o == NULL || o->kind == REFERENCE || o->offset == AT(config) || o->offset == AT(help))
        snprintf(reason, sizeof reason, "there is no option '%.40s'", word + 2);
    else if (o->kind == FLAG && value[0] != '\0' && strcmp(value, "true") != 0)
        snprintf(reason, sizeof reason, "'%.40s' takes no value", word + 2);
    else if (o->kind != FLAG && value[0] == '\0')
        snprintf(reason, sizeof reason, "'%.40s' needs a value", word + 2);
    else if (take(o, value, s, reason) == 0)
        return 0;
    snprintf(message, 300, "%.100s line %d: %.150s", s->config, number, reason);
    return -1;
}

static int take_config(const struct cli_command *command, struct cli_settings *s, char *message)
{
    size_t bytes;
    thespis_error error;
    if (th_file_read(s->config, MOST_CONFIG, &s->config_text, &bytes, &error) != THESPIS_OK) {
        snprintf(message, 300, "%.290s", error.message);
        return -1;
    }
    char *line = s->config_text;
    for (int number = 1; line != NULL; number++) {
        char *next = strchr(line, '\n');
        if (next != NULL) *next++ = '\0';
        if (take_line(command, line, number, s, message) != 0) return -1;
        line = next;
    }
    return 0;
}

void cli_release(struct cli_settings *settings)
{
    th_free(settings->config_text);
    settings->config_text = NULL;
}

int cli_parse(const struct cli_command *command, int argc, char **argv, struct cli_settings *settings, char message[300])
{
    int options_over = 0;
    set_defaults(command, settings);
    settings->config = find(command, "--config", 8) != NULL ? config_named(argc, argv) : NULL;
    if (settings->config != NULL && take_config(command, settings, message) != 0) return -1;
    for (int i = 0; i < argc; i++) {
        if (!options_over && strcmp(argv[i], "--") == 0) {
            options_over = 1;
        } else if (!options_over && argv[i][0] == '-' && argv[i][1] != '\0') {
            if (parse_option(command, argc, argv, &i, settings, message) != 0) return -1;
        } else if (settings->word_count == (int)(sizeof settings->words / sizeof *settings->words)) {
            snprintf(message, 300, "too many arguments: '%.100s'", argv[i]);
            return -1;
        } else {
            settings->words[settings->word_count++] = argv[i];
        }
    }
    return 0;
}

/* ---- help -------------------------------------------------------------------------------------------------------------------- */

/* Text in lines of at most 78 columns, each after `indent` blanks. */
static void wrap(FILE *out, const char *text, int indent)
{
    int column = 0;
    while (*text != '\0') {
        size_t n = strcspn(text, " ");
        if (column > 0 && column + 1 + (int)n > 78) {
            fputc('\n', out);
            column = 0;
        }
        if (column == 0)
            column = fprintf(out, "%*s", indent, "");
        else
            column += fprintf(out, " ");
        column += fprintf(out, "%.*s", (int)n, text);
        text += n;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

/* A limit that is none is not told as a default. */
static const char *told_default(const struct option *o)
{
    return o->initial != NULL && strcmp(o->initial, "2147483647") != 0 ? o->initial : NULL;
}

int cli_option_at(const struct cli_command *command, size_t index, struct cli_option_info *info)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const struct option *o = &table[i];
        if (!(o->commands & command->bit) || index-- > 0) continue;
        *info = (struct cli_option_info){o->group, o->name, o->value, o->choice, o->help, told_default(o)};
        return 1;
    }
    return 0;
}

static void print_option(FILE *out, const struct option *o)
{
    fprintf(out, "  %s%s%s\n", o->name, o->value != NULL ? " " : "", o->value != NULL ? o->value : "");
    wrap(out, o->help, 6);
    if (o->choice != NULL) fprintf(out, "      One of: %s\n", o->choice);
    if (told_default(o) != NULL) fprintf(out, "      Default: %s\n", o->initial);
}

void cli_help(FILE *out, const struct cli_command *command)
{
    fprintf(out, "Usage: thespis %s\n\n%s\n", command->usage, command->text);
    if (command->examples != NULL) fprintf(out, "\nExamples:\n%s", command->examples);
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        int first = (table[i].commands & command->bit) != 0;
        for (size_t j = 0; j < i; j++)
            if ((table[j].commands & command->bit) && strcmp(table[j].group, table[i].group) == 0) first = 0;
        if (!first) continue;
        fprintf(out, "\n%s:\n", table[i].group);
        for (size_t j = i; j < OPTION_COUNT; j++)
            if ((table[j].commands & command->bit) && strcmp(table[j].group, table[i].group) == 0) print_option(out, &table[j]);
    }
}
