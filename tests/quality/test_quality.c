/* Is what the shipped checkpoint says speech? Twenty sentences that are in no training text, spoken in each of its four voices
 * through the public interface, then judged by ear: words heard, sentence picked, voice recognised, length, end. A network that is
 * wrong somewhere does not pass (docs/testing.md has the figures, also those of planted mistakes).
 *
 *     test_quality                              # the test
 *     test_quality --seed 5 [--step 1]          # the same on other draws, or on all sixty sentences: for setting the limits
 *     test_quality --seed 1 --show              # each take, with the words heard
 *     test_quality --recordings DIR [--step 1]  # judge DIR/VOICE-NN.wav instead
 *     test_quality --learn DIR                  # print what voices.txt holds, from the source voices' recordings
 *
 * In a build with THESPIS_PLANT the program also plants five mistakes of backend/cpu/faults.h and demands that each fails. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "audio/recording.h"
#include "audio/resample.h"
#include "base/memory.h"
#include "judge.h"
#include "surprise.h"
#include "thespis.h"
#ifdef TH_PLANT
#include "backend/cpu/faults.h"
#endif

#define FOLDER TEST_SOURCE_DIR "/tests/quality"
#define CHECKPOINT TEST_SOURCE_DIR "/models/stage"
#define SENTENCES 60
#define VOICES 4
#define WORKERS 2
#define MOST_FRAMES 220 /* 10.2 s; the longest sentence takes 5 */
#define MOST_SAMPLES ((size_t)MOST_FRAMES * THESPIS_FRAME_SAMPLES)

static const char *const voice_names[VOICES] = {"slt", "awb", "rms", "kal16"};

/* What a run is measured by, and its limits. Measured figures, and how far other seeds lie from them, are in docs/testing.md. */
enum { WORDS, SENTENCES_PICKED, LIKENESS, ENDED, TIMELY, LENGTH_ERROR, TOKEN, CODE, FIGURES };
static const struct {
    const char *name;
    int at_most; /* 0: at least */
    double limit;
} limits[FIGURES] = {
    [WORDS] = {"words", 0, 0.60},             /* share of the words heard */
    [SENTENCES_PICKED] = {"picked", 0, 0.95}, /* share of the takes whose sentence is picked out of sixty */
    [LIKENESS] = {"likeness", 0, 0.95},       /* share of the takes that sound most like their own voice */
    [ENDED] = {"ended", 0, 0.98},             /* share of the takes that end by themselves */
    [TIMELY] = {"timely", 0, 0.95},           /* of the picked takes, those that end at most 0.6 s after their last word */
    [LENGTH_ERROR] = {"length", 1, 0.08},     /* mean of |log(seconds / seconds of the source voice)| */
    [TOKEN] = {"token", 1, 1.10},             /* surprise at the built-in voices' own speech, in nats: main token */
    [CODE] = {"code", 1, 3.20},               /* the other codes */
};

/* What is known of the source voices (voices.txt): the mean spectrum of each, one spread for all, and how long each sentence takes.
 */
static struct {
    char *sentences[SENTENCES];
    double timbre[VOICES][JUDGE_TIMBRE], spread[JUDGE_TIMBRE];
    double seconds[VOICES][SENTENCES];
} known;

struct take {
    int voice, sentence;
    double seconds;
    int ended; /* by itself */
    struct judge_verdict heard;
};

struct run {
    uint64_t seed;
    int step;               /* every step-th sentence */
    const char *recordings; /* judged instead of speaking, or NULL */
    thespis_engine *engine;
    struct take takes[VOICES * SENTENCES];
    int count, next, broken;
    pthread_mutex_t mutex;
};

struct figures {
    double value[FIGURES];
    double words_of[VOICES];
};

static struct {
    uint64_t seed;
    int step;
    const char *recordings;
    int show, learn;
} asked = {.seed = 1, .step = 3};

/* ---- what is known ----------------------------------------------------------------------------------------------------------- */

static void read_sentences(void)
{
    char line[512];
    FILE *in = fopen(FOLDER "/sentences.txt", "r");
    assert_non_null(in);
    for (int i = 0; i < SENTENCES; i++) {
        assert_non_null(fgets(line, sizeof line, in));
        line[strcspn(line, "\n")] = '\0';
        known.sentences[i] = strdup(line);
        assert_non_null(known.sentences[i]);
    }
    assert_null(fgets(line, sizeof line, in));
    fclose(in);
}

static void read_numbers(FILE *in, const char *name, double *out, int count)
{
    char word[32];
    assert_int_equal(fscanf(in, "%31s", word), 1);
    assert_string_equal(word, name);
    for (int i = 0; i < count; i++) assert_int_equal(fscanf(in, "%lf", &out[i]), 1);
}

static void read_voices(void)
{
    FILE *in = fopen(FOLDER "/voices.txt", "r");
    assert_non_null(in);
    for (int v = 0; v < VOICES; v++) read_numbers(in, voice_names[v], known.timbre[v], JUDGE_TIMBRE);
    read_numbers(in, "spread", known.spread, JUDGE_TIMBRE);
    for (int v = 0; v < VOICES; v++) read_numbers(in, voice_names[v], known.seconds[v], SENTENCES);
    fclose(in);
}

/* ---- speaking ---------------------------------------------------------------------------------------------------------------- */

static int16_t *to_pcm(const float *samples, size_t count, size_t *made)
{
    float *low = NULL;
    thespis_error error;
    *made = 0;
    if (th_resample(samples, count, THESPIS_SAMPLE_RATE, JUDGE_RATE, &low, made, &error) != THESPIS_OK) return NULL;
    int16_t *pcm = malloc((*made + 1) * sizeof *pcm);
    for (size_t i = 0; pcm != NULL && i < *made; i++) pcm[i] = (int16_t)lrintf(fmaxf(-1, fminf(1, low[i])) * 32767);
    th_free(low);
    return pcm;
}

static thespis_status speak(thespis_engine *engine, const char *text, uint64_t seed, float *samples, size_t *count, int *ended,
                            thespis_error *error)
{
    thespis_request_options ask;
    thespis_request *request;
    thespis_outcome outcome = {.size = sizeof outcome};
    thespis_request_options_init(&ask);
    ask.text = text;
    ask.text_bytes = strlen(text);
    ask.seed = seed;
    ask.max_frames = MOST_FRAMES;
    thespis_status status = thespis_request_start(engine, &ask, &request, error);
    size_t got = status == THESPIS_OK;
    *count = 0;
    while (status == THESPIS_OK && got > 0) {
        status = thespis_request_read(request, samples + *count, MOST_SAMPLES - *count, &got, error);
        *count += got;
        if (*count == MOST_SAMPLES) break;
    }
    if (status == THESPIS_OK) status = thespis_request_get_outcome(request, &outcome, error);
    *ended = outcome.finish == THESPIS_FINISH_STOP;
    thespis_request_free(request);
    return status;
}

static thespis_status get_audio(struct run *run, struct take *take, float *samples, size_t *count, thespis_error *error)
{
    char text[600];
    if (run->recordings == NULL) {
        snprintf(text, sizeof text, "<|speaker:%d|> %s", take->voice, known.sentences[take->sentence]);
        return speak(run->engine, text, run->seed, samples, count, &take->ended, error);
    }
    struct th_recording recording;
    snprintf(text, sizeof text, "%s/%s-%02d.wav", run->recordings, voice_names[take->voice], take->sentence);
    thespis_status status = th_recording_read_file(text, 10, &recording, error);
    if (status != THESPIS_OK) return status;
    *count = recording.count;
    memcpy(samples, recording.samples, *count * sizeof *samples);
    take->ended = 1;
    th_recording_free(&recording);
    return THESPIS_OK;
}

/* Speech that is stopped at the limit may end in the middle of anything; it is judged like the rest. */
static int do_take(struct run *run, struct judge *judge, struct take *take, float *samples)
{
    thespis_error error;
    size_t count, made;
    if (get_audio(run, take, samples, &count, &error) != THESPIS_OK) {
        fprintf(stderr, "voice %d, sentence %d: %s\n", take->voice, take->sentence, error.message);
        return 0;
    }
    take->seconds = (double)count / THESPIS_SAMPLE_RATE;
    int16_t *pcm = to_pcm(samples, count, &made);
    int heard = pcm != NULL && judge_listen(judge, pcm, made, &take->heard);
    free(pcm);
    return heard;
}

static void *work(void *argument)
{
    struct run *run = argument;
    struct judge *judge = judge_open(known.sentences, SENTENCES);
    float *samples = malloc(MOST_SAMPLES * sizeof *samples);
    pthread_mutex_lock(&run->mutex);
    if (judge == NULL || samples == NULL) run->broken = 1;
    while (run->next < run->count && !run->broken) {
        struct take *take = &run->takes[run->next++];
        pthread_mutex_unlock(&run->mutex);
        int good = do_take(run, judge, take, samples);
        pthread_mutex_lock(&run->mutex);
        if (!good) run->broken = 1;
    }
    pthread_mutex_unlock(&run->mutex);
    free(samples);
    judge_close(judge);
    return NULL;
}

/* Two workers: while one listens, the other's take is spoken. What they find does not depend on their order. */
static void speak_and_judge(struct run *run)
{
    pthread_t other;
    for (int k = 0; k < SENTENCES; k += run->step)
        for (int v = 0; v < VOICES; v++) run->takes[run->count++] = (struct take){.voice = v, .sentence = k};
    pthread_mutex_init(&run->mutex, NULL);
    assert_int_equal(pthread_create(&other, NULL, work, run), 0);
    work(run);
    pthread_join(other, NULL);
    pthread_mutex_destroy(&run->mutex);
    assert_false(run->broken);
}

static thespis_engine *open_engine(void)
{
    thespis_engine_options options;
    thespis_engine *engine;
    thespis_error error;
    thespis_engine_options_init(&options);
    options.checkpoint = CHECKPOINT;
    options.backend = THESPIS_BACKEND_CPU;
    options.lanes = WORKERS;
    if (thespis_engine_open(&options, &engine, &error) != THESPIS_OK) fail_msg("%s", error.message);
    return engine;
}

/* ---- judging ----------------------------------------------------------------------------------------------------------------- */

static int nearest_voice(const double timbre[JUDGE_TIMBRE])
{
    double best = INFINITY;
    int nearest = -1;
    for (int v = 0; v < VOICES; v++) {
        double d = 0;
        for (int c = 0; c < JUDGE_TIMBRE; c++) d += pow((timbre[c] - known.timbre[v][c]) / known.spread[c], 2);
        if (d < best) nearest = v;
        if (d < best) best = d;
    }
    return nearest;
}

static void show(const struct take *take, double ratio, double tail)
{
    printf("%s %2d  %.2f s, %.2f of the source's, %.2f after the last word, sounds like %s, picked %d: %s\n",
           voice_names[take->voice], take->sentence, take->seconds, ratio, tail, voice_names[nearest_voice(take->heard.timbre)],
           take->heard.picked, take->heard.words);
}

/* Sums over the takes; words are counted in errors[voice] of total[voice]. */
static void add_take(const struct take *take, double value[FIGURES], int errors[VOICES], int total[VOICES])
{
    char want[1024];
    int words;
    judge_words(known.sentences[take->sentence], want, sizeof want);
    errors[take->voice] += judge_word_errors(want, take->heard.words, &words);
    total[take->voice] += words;
    int picked = take->heard.picked == take->sentence;
    double tail = take->seconds - take->heard.last_word, ratio = take->seconds / known.seconds[take->voice][take->sentence];
    value[SENTENCES_PICKED] += picked;
    value[LIKENESS] += nearest_voice(take->heard.timbre) == take->voice;
    value[ENDED] += take->ended;
    value[TIMELY] += picked && tail <= 0.6;
    value[LENGTH_ERROR] += fmin(1, fabs(log(ratio)));
    if (asked.show) show(take, ratio, tail);
}

static struct figures judge_run(const struct run *run)
{
    struct figures f = {{0}, {0}};
    int errors[VOICES] = {0}, total[VOICES] = {0}, all_errors = 0, all = 0;
    for (int i = 0; i < run->count; i++) add_take(&run->takes[i], f.value, errors, total);
    for (int v = 0; v < VOICES; v++) {
        f.words_of[v] = 1 - (double)errors[v] / total[v];
        all_errors += errors[v], all += total[v];
    }
    f.value[WORDS] = 1 - (double)all_errors / all;
    f.value[TIMELY] /= f.value[SENTENCES_PICKED] > 0 ? f.value[SENTENCES_PICKED] : 1;
    f.value[SENTENCES_PICKED] /= run->count;
    f.value[LIKENESS] /= run->count;
    f.value[ENDED] /= run->count;
    f.value[LENGTH_ERROR] /= run->count;
    return f;
}

static void print_head(void)
{
    printf("%-26s", "");
    for (int i = 0; i < FIGURES; i++) printf(" %8s", limits[i].name);
    printf("  words of %s, %s, %s, %s\n", voice_names[0], voice_names[1], voice_names[2], voice_names[3]);
    printf("%-26s", "limit");
    for (int i = 0; i < FIGURES; i++) printf(" %s%6.3f", limits[i].at_most ? "<=" : ">=", limits[i].limit);
    printf("\n");
}

/* Prints the figures of a run and the limits that it breaks; returns how many. */
static int report(const char *name, const struct figures *f)
{
    int broken = 0;
    printf("%-26s", name);
    for (int i = 0; i < FIGURES; i++) printf(" %8.3f", f->value[i]);
    printf("  %.2f %.2f %.2f %.2f", f->words_of[0], f->words_of[1], f->words_of[2], f->words_of[3]);
    for (int i = 0; i < FIGURES; i++) {
        int good = limits[i].at_most ? f->value[i] <= limits[i].limit : f->value[i] >= limits[i].limit;
        if (good) continue;
        printf("%s%s", broken++ > 0 ? ", " : "  past the limit: ", limits[i].name);
    }
    printf("\n");
    fflush(stdout);
    return broken;
}

/* Speaks or reads the takes, judges them, reports; returns how many limits are broken. */
static int measure(const char *name)
{
    struct run *run = calloc(1, sizeof *run);
    thespis_error error;
    assert_non_null(run);
    run->seed = asked.seed, run->step = asked.step, run->recordings = asked.recordings;
    if (run->recordings == NULL) run->engine = open_engine();
    speak_and_judge(run);
    thespis_engine_close(run->engine);
    struct figures f = judge_run(run);
    if (run->recordings == NULL &&
        surprise_measure(CHECKPOINT, voice_names, VOICES, &f.value[TOKEN], &f.value[CODE], &error) != THESPIS_OK)
        fail_msg("%s", error.message);
    free(run);
    return report(name, &f);
}

static void what_is_said_is_understood(void **state)
{
    (void)state;
    print_head();
    assert_int_equal(measure("as shipped"), 0);
}

#ifdef TH_PLANT
static void every_planted_mistake_is_heard(void **state)
{
    static const struct {
        int fault;
        const char *name;
    } planted[] = {{1, "queries and gates swapped"},
                   {2, "RoPE pairs (2i, 2i + 1)"},
                   {4, "k_norm by w, not 1 + w"},
                   {5, "one expert fewer"},
                   {10, "tower label, same frame"}};
    (void)state;
    int missed = 0;
    for (size_t k = 0; k < sizeof planted / sizeof *planted; k++) {
        th_planted_fault = planted[k].fault;
        missed += measure(planted[k].name) == 0;
        th_planted_fault = 0;
    }
    assert_int_equal(missed, 0);
}
#endif

/* ---- recordings of the source voices ----------------------------------------------------------------------------------------- */

static void print_numbers(const char *name, const double *numbers, int count, const char *form)
{
    printf("%s", name);
    for (int i = 0; i < count; i++) printf(form, numbers[i]);
    printf("\n");
}

/* Prints voices.txt from all sixty sentences: means, the spread within a voice, seconds. */
static void learn(const struct run *run)
{
    double mean[VOICES][JUDGE_TIMBRE] = {{0}}, spread[JUDGE_TIMBRE] = {0}, seconds[VOICES][SENTENCES] = {{0}};
    for (int i = 0; i < run->count; i++)
        for (int c = 0; c < JUDGE_TIMBRE; c++) mean[run->takes[i].voice][c] += run->takes[i].heard.timbre[c] * VOICES / run->count;
    for (int i = 0; i < run->count; i++) {
        const struct take *take = &run->takes[i];
        seconds[take->voice][take->sentence] = take->seconds;
        for (int c = 0; c < JUDGE_TIMBRE; c++) spread[c] += pow(take->heard.timbre[c] - mean[take->voice][c], 2) / run->count;
    }
    for (int c = 0; c < JUDGE_TIMBRE; c++) spread[c] = sqrt(spread[c]);
    for (int v = 0; v < VOICES; v++) print_numbers(voice_names[v], mean[v], JUDGE_TIMBRE, " %.3f");
    print_numbers("spread", spread, JUDGE_TIMBRE, " %.3f");
    for (int v = 0; v < VOICES; v++) print_numbers(voice_names[v], seconds[v], SENTENCES, " %.2f");
}

static void learn_recordings(void **state)
{
    (void)state;
    struct run *run = calloc(1, sizeof *run);
    assert_non_null(run);
    run->step = 1, run->recordings = asked.recordings;
    speak_and_judge(run);
    learn(run);
    free(run);
}

static void judge_recordings(void **state)
{
    (void)state;
    print_head();
    measure("recordings");
}

static int read_known(void **state)
{
    (void)state;
    read_sentences();
    if (!asked.learn) read_voices();
    return 0;
}

static int forget_known(void **state)
{
    (void)state;
    for (int i = 0; i < SENTENCES; i++) free(known.sentences[i]);
    return 0;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) asked.show |= strcmp(argv[i], "--show") == 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0) asked.seed = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--step") == 0) asked.step = atoi(argv[i + 1]);
        asked.learn |= strcmp(argv[i], "--learn") == 0;
        if (asked.learn || strcmp(argv[i], "--recordings") == 0) asked.recordings = argv[i + 1];
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_said_is_understood),
#ifdef TH_PLANT
        cmocka_unit_test(every_planted_mistake_is_heard),
#endif
    };
    const struct CMUnitTest recordings[] = {cmocka_unit_test(judge_recordings)}, learning[] = {cmocka_unit_test(learn_recordings)};
    if (asked.learn) return cmocka_run_group_tests(learning, read_known, forget_known);
    if (asked.recordings != NULL) return cmocka_run_group_tests(recordings, read_known, forget_known);
    return cmocka_run_group_tests(tests, read_known, forget_known);
}
