/* ask.c - the tables of fields: POST /v1/audio/speech, POST /v1/tts, and the objects inside them. */
#include "server/ask.h"

#include <stddef.h>
#include <string.h>

#define AT(field) offsetof(struct th_ask, field)
#define COUNT(table) (sizeof(table) / sizeof *(table))
#define MOST_SEED 9223372036854775807.0
#define UNSUPPORTED(name)                                                                                                          \
    {                                                                                                                              \
        name, TH_FIELD_REFUSED, 0, 0, 0, 0, NULL, NULL, "Refused: this model has no such setting."                                 \
    }
#define NO_EFFECT(name)                                                                                                            \
    {                                                                                                                              \
        name, TH_FIELD_IGNORED, 0, 0, 0, 0, NULL, NULL, "Accepted, without effect."                                                \
    }

void th_ask_init(struct th_ask *ask)
{
    memset(ask, 0, sizeof *ask);
    ask->speed = 1;
    ask->stream = -1;
    ask->temperature = 1;
    ask->top_p = 0.9;
    ask->top_k = INT32_MAX;
    ask->seed = -1;
    ask->granularity = 1;
    ask->chunk_bytes = -1;
    ask->with_history = 1;
}

static const struct th_field openai[] = {
    {"input", TH_FIELD_VALUE, AT(input), 0, 0, 0, "Text", NULL,
     "What to say, UTF-8. <|speaker:N|> changes the speaker, cues stand in [brackets]."},
    {"model", TH_FIELD_TEXT, AT(model), 0, 0, 0, NULL, "the served model",
     "Any name is accepted, unless the server was started with --strict-model."},
    {"voice", TH_FIELD_VALUE, AT(voice), 0, 0, 0, "Voice", "default",
     "A stored voice, \"default\", or one of OpenAI's names, which mean the default voice unless one is stored under that name."},
    {"response_format", TH_FIELD_FORMAT, AT(format), 0, 0, 0, NULL, "mp3", "The format of the audio."},
    {"speed", TH_FIELD_NUMBER, AT(speed), 0.25, 4, 0, NULL, "1", "Only 1 is built in; other values are refused."},
    {"stream", TH_FIELD_BOOLEAN, AT(stream), 0, 0, 0, NULL, "true for pcm, mp3, opus and aac, false for wav and flac",
     "Send the audio while it is being made."},
    {"stream_format", TH_FIELD_CHOICE, AT(sse), 0, 0, 0, "audio sse", "audio",
     "sse: server-sent events with the audio in base64; implies stream."},
    {"instructions", TH_FIELD_TEXT, AT(instructions), 0, 0, 0, NULL, NULL,
     "Refused unless blank, or dropped with --ignore-instructions: write cues in brackets in input."},
    {"references", TH_FIELD_VALUE, AT(references), 0, 0, 0, "References", NULL,
     "Recordings of the voice to speak in, with their words; voice is then not looked at."},
    {"ref_audio", TH_FIELD_VALUE, AT(ref_audio), 0, 0, 0, "Text", NULL, "One more reference, after references."},
    {"ref_text", TH_FIELD_TEXT, AT(reference_text), 0, 0, 0, NULL, NULL, "The words spoken in ref_audio."},
    {"temperature", TH_FIELD_NUMBER, AT(temperature), 0, 5, 0, NULL, "1", "Wilder above 1, tamer below."},
    {"top_p", TH_FIELD_NUMBER, AT(top_p), 0, 1, 1, NULL, "0.9", "Draw from the likeliest tokens that share this probability."},
    {"top_k", TH_FIELD_INTEGER, AT(top_k), 1, 2147483647, 0, NULL, "unlimited", "Draw from so many likeliest tokens at most."},
    {"max_new_tokens", TH_FIELD_INTEGER, AT(max_frames), 1, 2048, 0, NULL, "as many as fit, at most 2048",
     "Frames of 46.4 ms for each chunk of the text."},
    {"repetition_penalty", TH_FIELD_ONLY, 0, 1, 1, 0, NULL, "1", "Only 1 is supported."},
    {"seed", TH_FIELD_INTEGER, AT(seed), 0, MOST_SEED, 0, NULL, "drawn, and told in X-Seed",
     "The same seed and request give the same audio, byte for byte."},
    {"sample_rate", TH_FIELD_INTEGER, AT(sample_rate), 8000, 48000, 0, NULL, "44100; pcm on this route: 24000; opus: 48000",
     "Samples a second of the audio."},
    {"task_type", TH_FIELD_CHOICE, AT(task), 0, 0, 0, "base", "base", "Only Base."},
    {"split_granularity", TH_FIELD_CHOICE, AT(granularity), 0, 0, 0, "none auto sentence clause", "auto",
     "Where a long text is cut into chunks."},
    UNSUPPORTED("language"),
    UNSUPPORTED("x_vector_only_mode"),
    UNSUPPORTED("stream_codec_output"),
    UNSUPPORTED("suppress_bootstrap_silence"),
    UNSUPPORTED("token_count"),
    UNSUPPORTED("duration_tokens"),
    UNSUPPORTED("initial_codec_chunk_frames"),
    UNSUPPORTED("stage_params"),
};
const struct th_fields th_openai_fields = {"SpeechRequest", "speech request", openai, COUNT(openai), "input"};

static const struct th_field fish[] = {
    {"text", TH_FIELD_VALUE, AT(input), 0, 0, 0, "Text", NULL, "What to say; as input of /v1/audio/speech."},
    {"chunk_length", TH_FIELD_INTEGER, AT(chunk_bytes), 0, 1e9, 0, NULL, "300",
     "Target of a chunk in bytes, held to 100..1000; 0 does not cut."},
    {"format", TH_FIELD_FORMAT, AT(format), 0, 0, 0, NULL, "wav", "The format of the audio."},
    {"latency", TH_FIELD_CHOICE, AT(latency), 0, 0, 0, "normal balanced low", NULL, "Accepted, without effect."},
    {"references", TH_FIELD_VALUE, AT(references), 0, 0, 0, "References", NULL,
     "Recordings of the voice to speak in, each {audio, text}; audio is binary, or base64 as text."},
    {"reference_id", TH_FIELD_VALUE, AT(voice), 0, 0, 0, "Text", NULL, "A stored voice; wins over references."},
    {"seed", TH_FIELD_INTEGER, AT(seed), 0, MOST_SEED, 0, NULL, "drawn, and told in X-Seed",
     "The same seed and request give the same audio, byte for byte."},
    {"use_memory_cache", TH_FIELD_IGNORED, 0, 0, 0, 0, NULL, NULL, "Accepted, without effect."},
    NO_EFFECT("normalize"),
    {"streaming", TH_FIELD_BOOLEAN, AT(stream), 0, 0, 0, NULL, "true", "Send the audio while it is being made."},
    {"max_new_tokens", TH_FIELD_INTEGER, AT(max_frames), 0, 2048, 0, NULL, "as many as fit, at most 2048",
     "Frames of 46.4 ms for each chunk of the text; 0: the default."},
    {"temperature", TH_FIELD_NUMBER, AT(temperature), 0, 5, 0, NULL, "1", "Wilder above 1, tamer below."},
    {"top_p", TH_FIELD_NUMBER, AT(top_p), 0, 1, 1, NULL, "0.9", "Draw from the likeliest tokens that share this probability."},
    NO_EFFECT("repetition_penalty"),
    {"sample_rate", TH_FIELD_INTEGER, AT(sample_rate), 8000, 48000, 0, NULL, "44100; opus: 48000",
     "Samples a second of the audio."},
    {"mp3_bitrate", TH_FIELD_INTEGER, AT(mp3_bitrate), 64, 192, 0, NULL, "128", "64, 128 or 192 kb/s."},
    {"opus_bitrate", TH_FIELD_INTEGER, AT(opus_bitrate), -1000, 64, 0, NULL, "64", "-1000 (automatic), 24, 32, 48 or 64 kb/s."},
    {"prosody", TH_FIELD_VALUE, AT(prosody), 0, 0, 0, "Prosody", NULL, "{speed, volume}"},
    NO_EFFECT("min_chunk_length"),
    {"condition_on_previous_chunks", TH_FIELD_BOOLEAN, AT(with_history), 0, 0, 0, NULL, "true",
     "Chunks hear what was said before them."},
    NO_EFFECT("early_stop_threshold"),
};
const struct th_fields th_fish_fields = {"TTSRequest", "tts request", fish, COUNT(fish), "text"};

static const struct th_field prosody[] = {
    {"speed", TH_FIELD_NUMBER, AT(speed), 0.25, 4, 0, NULL, "1", "Only 1 is built in; other values are refused."},
    {"volume", TH_FIELD_NUMBER, AT(volume), -20, 20, 0, NULL, "0", "Decibels."},
};
const struct th_fields th_prosody_fields = {"Prosody", "prosody", prosody, COUNT(prosody), NULL};

#undef AT
#define AT(field) offsetof(struct th_reference_ask, field)

static const struct th_field reference[] = {
    {"vq_codes", TH_FIELD_VALUE, AT(vq_codes), 0, 0, 0, "Codes", NULL, "Codec codes, a list for each codebook."},
    {"data", TH_FIELD_VALUE, AT(data), 0, 0, 0, "Text", NULL, "A recording in base64."},
    {"media_type", TH_FIELD_TEXT, AT(media_type), 0, 0, 0, NULL, "audio/wav", "Of data; must be audio/*. The content decides."},
    {"audio_path", TH_FIELD_VALUE, AT(audio_path), 0, 0, 0, "Text", NULL, "A file in the server's --media-dir."},
    {"ref_audio", TH_FIELD_VALUE, AT(ref_audio), 0, 0, 0, "Text", NULL,
     "data: URL or base64; with --media-dir a path or file: URL; with --fetch an http(s) URL."},
    {"audio", TH_FIELD_VALUE, AT(audio), 0, 0, 0, "Text", NULL, "As ref_audio; in MessagePack also the recording's bytes."},
    {"text", TH_FIELD_TEXT, AT(text), 0, 0, 0, NULL, NULL,
     "The words spoken in the recording. May begin with <|speaker:N|>. Without it the voice is less alike."},
};
const struct th_fields th_reference_fields = {"Reference", "reference", reference, COUNT(reference), NULL};
