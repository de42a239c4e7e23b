/* merges.c - byte-pair merges learnt from an embedded list of words: the most frequent pair is merged, again and again. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "make_checkpoint.h"

#define MAX_SYMBOLS 1024
#define MAX_PIECES 768
#define MAX_LENGTH 48 /* bytes of a piece */

/* Frequent words first: a word's weight falls with its place. The prompt's own words stand among the first. */
static const char words[] =
    "the a and of to in is it you convert provided text to speech reference following system user assistant Reference Text Speech "
    "speaker voice that was he for on are with as his they be at one have this from or had by hot but some what there we can out "
    "other were all your when up use word how said an each she which do their time if will way about many then them would write "
    "like so these her long make thing see him two has look more day could go come did my sound no most number who over know "
    "water than call first people may down side been now find any new work part take get place made live where after back little "
    "only round man year came show every good me give our under name very through just form much great think say help low line "
    "before turn cause same mean differ move right boy old too does tell sentence set three want air well also play small end put "
    "home read hand port large spell add even land here must big high such follow act why ask men change went light kind off need "
    "house picture try us again animal point mother world near laughs sighs whispers shouts pause excited calm sad gently quickly "
    "softly breath audience applause music story river mountain evening morning window garden silver thunder quiet lantern "
    "harbour whale candle pepper orange bridge isn't don't can't we'll you're I've I'm it's they'd won't "
    /* cafe, deja, naive, ueber, strasse, nino, manana, lodz with their marks; hello, world, sound; konnichiwa; privet, mir */
    "caf\xc3\xa9 d\xc3\xa9j\xc3\xa0 na\xc3\xafve \xc3\xbc\142er stra\xc3\x9f\145 ni\xc3\xb1o ma\xc3\xb1\141na "
    "\xc5\x82\xc3\xb3\144\xc5\xba "
    "\xe4\xbd\xa0\xe5\xa5\xbd \xe4\xb8\x96\xe7\x95\x8c \xe5\xa3\xb0\xe9\x9f\xb3 "
    "\xe3\x81\x93\xe3\x82\x93\xe3\x81\xab\xe3\x81\xa1\xe3\x81\xaf "
    "\xd0\xbf\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82 \xd0\xbc\xd0\xb8\xd1\x80 ";

/* What stands between words; the splitter keeps each of these in one piece. */
static const char *const marks[] = {".", ",", "?", "!", ":", ",\n", "...\n\n", "\n\n", ".\n", " [", "]", "]\n", "...", " -", " \""};

struct trainer {
    char symbols[MAX_SYMBOLS][64]; /* in the byte alphabet */
    int symbol_count;
    int pieces[MAX_PIECES][MAX_LENGTH]; /* symbol numbers */
    int lengths[MAX_PIECES];
    uint32_t weights[MAX_PIECES];
    int piece_count;
    uint32_t counts[MAX_SYMBOLS * MAX_SYMBOLS]; /* of pairs; zero between steps */
};

void th_byte_symbol(int byte, char symbol[4])
{
    int visible = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    int point = byte;
    if (!visible) point = 256 + (byte <= 0x20 ? byte : byte <= 0xa0 ? byte - 0x7f + 33 : 67);
    if (point < 0x80) {
        symbol[0] = (char)point;
        symbol[1] = 0;
    } else {
        symbol[0] = (char)(0xc0 | point >> 6);
        symbol[1] = (char)(0x80 | (point & 0x3f));
        symbol[2] = 0;
    }
}

static void add_piece(struct trainer *t, const char *text, size_t bytes, uint32_t weight)
{
    if (bytes == 0 || bytes > MAX_LENGTH || t->piece_count == MAX_PIECES) return;
    int n = t->piece_count++;
    for (size_t i = 0; i < bytes; i++) t->pieces[n][i] = (unsigned char)text[i];
    t->lengths[n] = (int)bytes;
    t->weights[n] = weight;
}

/* A word inside a line (with its space), at its start (without), and what follows an apostrophe as a piece of its own. */
static void add_word(struct trainer *t, const char *word, size_t bytes, uint32_t weight)
{
    char spaced[MAX_LENGTH];
    const char *mark = memchr(word, '\'', bytes);
    size_t head = mark != NULL ? (size_t)(mark - word) : bytes;
    if (head + 1 > sizeof spaced) return;
    spaced[0] = ' ';
    memcpy(spaced + 1, word, head);
    add_piece(t, spaced, head + 1, weight);
    add_piece(t, word, head, weight / 8 + 2);
    if (mark != NULL) add_piece(t, mark, bytes - head, weight);
}

/* Word i of n is drawn as often as n * u^2 falls on i for a uniform u. */
static void add_words(struct trainer *t)
{
    int count = 0, index = 0;
    for (const char *c = words; *c != 0; c++) count += *c == ' ';
    for (const char *word = words; *word != 0; index++) {
        const char *end = strchr(word, ' ');
        double share = sqrt((index + 1.0) / count) - sqrt((double)index / count);
        add_word(t, word, (size_t)(end - word), (uint32_t)(24000.0 * share) + 2);
        word = end + 1;
    }
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) add_piece(t, marks[i], strlen(marks[i]), (uint32_t)(900 / (i + 1)));
}

static int symbol_number(struct trainer *t, const char *spelling)
{
    for (int i = 0; i < t->symbol_count; i++)
        if (strcmp(t->symbols[i], spelling) == 0) return i;
    if (t->symbol_count == MAX_SYMBOLS) return -1;
    snprintf(t->symbols[t->symbol_count], sizeof t->symbols[0], "%s", spelling);
    return t->symbol_count++;
}

/* Adds every pair's weight to its count (sign 1) or clears the counts (0). */
static void count_pairs(struct trainer *t, int sign)
{
    for (int n = 0; n < t->piece_count; n++)
        for (int i = 0; i + 1 < t->lengths[n]; i++) {
            uint32_t *count = &t->counts[t->pieces[n][i] * MAX_SYMBOLS + t->pieces[n][i + 1]];
            *count = sign ? *count + t->weights[n] : 0;
        }
}

/* The heaviest pair; of equals the one with the smallest numbers. -1 when all pieces are single symbols. */
static int best_pair(struct trainer *t)
{
    int best = -1;
    count_pairs(t, 1);
    for (int n = 0; n < t->piece_count; n++)
        for (int i = 0; i + 1 < t->lengths[n]; i++) {
            int pair = t->pieces[n][i] * MAX_SYMBOLS + t->pieces[n][i + 1];
            if (best < 0 || t->counts[pair] > t->counts[best] || (t->counts[pair] == t->counts[best] && pair < best)) best = pair;
        }
    count_pairs(t, 0);
    return best;
}

static void apply(struct trainer *t, int left, int right, int merged)
{
    for (int n = 0; n < t->piece_count; n++) {
        int kept = 0;
        for (int i = 0; i < t->lengths[n]; i++) {
            int both = i + 1 < t->lengths[n] && t->pieces[n][i] == left && t->pieces[n][i + 1] == right;
            t->pieces[n][kept++] = both ? merged : t->pieces[n][i];
            i += both;
        }
        t->lengths[n] = kept;
    }
}

static void train(struct trainer *t, int wanted, struct th_merges *merges)
{
    for (int byte = 0; byte < 256; byte++) {
        char symbol[4];
        th_byte_symbol(byte, symbol);
        snprintf(t->symbols[t->symbol_count++], sizeof t->symbols[0], "%s", symbol);
    }
    add_words(t);
    while (merges->count < wanted) {
        char spelling[128];
        int pair = best_pair(t);
        if (pair < 0) return;
        int left = pair / MAX_SYMBOLS, right = pair % MAX_SYMBOLS;
        snprintf(spelling, sizeof spelling, "%s%s", t->symbols[left], t->symbols[right]);
        int merged = strlen(spelling) < sizeof t->symbols[0] ? symbol_number(t, spelling) : -1;
        if (merged < 0) return;
        memcpy(merges->left[merges->count], t->symbols[left], sizeof t->symbols[0]);
        memcpy(merges->right[merges->count], t->symbols[right], sizeof t->symbols[0]);
        merges->count++;
        apply(t, left, right, merged);
    }
}

thespis_status th_merges_train(int wanted, struct th_merges *merges, thespis_error *error)
{
    struct trainer *t = NULL;
    memset(merges, 0, sizeof *merges);
    thespis_status status = TH_ALLOC(&t, 1, "the tokenizer's training", error);
    if (status == THESPIS_OK) status = TH_ALLOC(&merges->left, (size_t)wanted, "merges", error);
    if (status == THESPIS_OK) status = TH_ALLOC(&merges->right, (size_t)wanted, "merges", error);
    if (status == THESPIS_OK) train(t, wanted, merges);
    th_free(t);
    if (status != THESPIS_OK) th_merges_free(merges);
    return status;
}

void th_merges_free(struct th_merges *merges)
{
    th_free(merges->left);
    th_free(merges->right);
    memset(merges, 0, sizeof *merges);
}
