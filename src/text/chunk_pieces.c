/* chunk_pieces.c - cuts each turn into pieces of at most the target: at units first, what is still too long at the next level. What
 * has nothing to speak stays with its neighbour at every level. */
#include "text/chunk_parts.h"
#include "text/unicode.h"

/* The turn being cut and the piece being filled. */
struct packer {
    struct th_cut *cut;
    size_t turn, limit; /* limit: the target less the turn's tag */
    struct th_piece piece;
    int filled;      /* the piece holds something that is not white space */
    size_t absorbed; /* bytes joined to a whole piece beyond its span */
};

static thespis_status finish_piece(struct packer *packer, thespis_error *error)
{
    struct th_cut *cut = packer->cut;
    if (!packer->filled) return THESPIS_OK;
    TH_TRY(th_cut_grow(&cut->pieces, cut->piece_count, &cut->piece_capacity, sizeof *cut->pieces, "pieces of the text", error));
    packer->piece.speaks = th_cut_speaks(cut, packer->piece.text_begin, packer->piece.text_end);
    cut->pieces[cut->piece_count++] = packer->piece;
    packer->filled = 0;
    return THESPIS_OK;
}

static void begin_piece(struct packer *packer, size_t begin, size_t end)
{
    const char *text = packer->cut->text;
    size_t text_begin = th_skip_space(text, begin, end), text_end = th_trim_end(text, text_begin, end);
    packer->piece = (struct th_piece){.begin = begin,
                                      .end = end,
                                      .text_begin = text_begin,
                                      .text_end = text_end,
                                      .turn = packer->turn,
                                      .whole = text_end - text_begin > packer->limit};
    packer->filled = 1;
    packer->absorbed = 0;
}

static void extend_piece(struct packer *packer, size_t end)
{
    struct th_piece *piece = &packer->piece;
    piece->end = end;
    piece->text_end = th_trim_end(packer->cut->text, piece->text_begin, end);
    piece->whole = piece->text_end - piece->text_begin > packer->limit;
}

/* Last place to cut the piece so that its tail speaks and leaves room for what follows up to `end`: in front of a word, or if there
 * is none, anywhere. 0: there is none. Looks at no more than a piece. */
static size_t lend(const struct packer *packer, size_t end)
{
    const struct th_cut *cut = packer->cut;
    size_t anywhere = 0;
    for (size_t at = packer->piece.text_end - 1; at > packer->piece.text_begin; at--) {
        if (end - at > packer->limit) break;
        if (!th_cut_may(cut, at) || !th_cut_speaks(cut, at, packer->piece.text_end)) continue;
        if (!th_cut_speaks(cut, packer->piece.text_begin, at)) break;
        size_t before = at;
        if (th_is_white_space(th_utf8_before(cut->text, packer->piece.text_begin, &before))) return at;
        if (anywhere == 0) anywhere = at;
    }
    return anywhere;
}

/* Puts [begin, end) where it belongs: to the piece while there is room, otherwise to a new one. */
static thespis_status pack(struct packer *packer, size_t begin, size_t end, thespis_error *error)
{
    struct th_cut *cut = packer->cut;
    struct th_piece *piece = &packer->piece;
    size_t text_end = th_trim_end(cut->text, begin, end);
    if (!packer->filled) {
        if (text_end > begin) begin_piece(packer, begin, end);
        return THESPIS_OK;
    }
    if (text_end == begin) { /* blank: between two pieces */
        piece->end = end;
        return THESPIS_OK;
    }
    size_t text_begin = th_skip_space(cut->text, begin, end);
    int speaks = th_cut_speaks(cut, begin, end), fits = text_end - piece->text_begin <= packer->limit;
    if (!fits && piece->whole && !speaks && packer->absorbed + (end - begin) <= packer->limit) {
        packer->absorbed += end - begin;
        fits = 1;
    }
    if (!fits && text_end - text_begin > packer->limit && !th_cut_speaks(cut, piece->text_begin, piece->text_end)) fits = 1;
    if (fits) {
        extend_piece(packer, end);
        return THESPIS_OK;
    }
    size_t from = begin;
    if (!speaks && !piece->whole && (from = lend(packer, text_end)) != 0) {
        extend_piece(packer, from);
    } else {
        from = begin;
    }
    TH_TRY(finish_piece(packer, error));
    begin_piece(packer, from, end);
    return THESPIS_OK;
}

/* What numbers and words of Latin letters are made of. */
static int is_sticky(uint32_t c)
{
    return c < 0x250 && (th_is_letter(c) || th_is_number(c) || c == '.' || c == ',' || c == '\'');
}

/* Would a cut here tear a number or a Latin word? */
static int is_torn(const struct th_cut *cut, size_t begin, size_t at, size_t end)
{
    size_t before = at;
    return at > begin && at < end && is_sticky(th_utf8_next(cut->text, end, &at)) &&
           is_sticky(th_utf8_before(cut->text, begin, &before));
}

/* Cuts [begin, end) between graphemes, each piece as long as the limit lets it be, or shorter by up to a half to keep a number or a
 * Latin word in one piece. */
static thespis_status cut_graphemes(struct packer *packer, size_t begin, size_t end, thespis_error *error)
{
    const struct th_cut *cut = packer->cut;
    size_t text_begin = th_skip_space(cut->text, begin, end), calm = begin;
    for (size_t at = begin; at < end;) {
        size_t next = th_cut_step(cut, at, end);
        int blank = th_trim_end(cut->text, at, next) == at;
        while (at > text_begin && !blank && next - text_begin > packer->limit) {
            size_t to = calm > text_begin + packer->limit / 2 ? calm : at;
            TH_TRY(pack(packer, begin, to, error));
            calm = begin = to;
            text_begin = th_skip_space(cut->text, to, end);
        }
        at = next;
        if (!is_torn(cut, begin, at, end)) calm = at;
    }
    return pack(packer, begin, end, error);
}

static thespis_status cut_range(struct packer *packer, size_t begin, size_t end, enum th_level level, thespis_error *error);

/* One part of a level: packed if it fits, cut further if not. */
static thespis_status place(struct packer *packer, size_t begin, size_t end, enum th_level level, thespis_error *error)
{
    const char *text = packer->cut->text;
    size_t text_begin = th_skip_space(text, begin, end);
    size_t bytes = th_trim_end(text, text_begin, end) - text_begin;
    if (bytes <= packer->limit)
        TH_TRY(pack(packer, begin, end, error));
    else if (level == TH_LEVEL_SPACE)
        TH_TRY(cut_graphemes(packer, begin, end, error));
    else
        TH_TRY(cut_range(packer, begin, end, level + 1, error));
    return level == TH_LEVEL_UNIT && packer->cut->granularity != TH_CUT_AUTO ? finish_piece(packer, error) : THESPIS_OK;
}

static thespis_status cut_range(struct packer *packer, size_t begin, size_t end, enum th_level level, thespis_error *error)
{
    const struct th_cut *cut = packer->cut;
    size_t from = begin;
    int speaks = 0;
    for (size_t at = begin; at < end;) {
        size_t next = th_cut_next(cut, at, end, level);
        int part_speaks = th_cut_speaks(cut, at, next);
        if (speaks && part_speaks) { /* what lies in [from, at) is complete; silent parts stay with what is before them */
            TH_TRY(place(packer, from, at, level, error));
            from = at;
        }
        speaks |= part_speaks;
        at = next;
    }
    return place(packer, from, end, level, error);
}

thespis_status th_cut_pieces(struct th_cut *cut, thespis_error *error)
{
    for (size_t i = 0; i < cut->turn_count; i++) {
        const struct th_turn *turn = &cut->turns[i];
        struct packer packer = {.cut = cut, .turn = i, .limit = cut->target - th_cut_tag_bytes(turn->speaker)};
        TH_TRY(cut_range(&packer, turn->body, turn->end, TH_LEVEL_UNIT, error));
        TH_TRY(finish_piece(&packer, error));
    }
    return THESPIS_OK;
}
