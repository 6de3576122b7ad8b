// Forward pass of DBA's self-attention (Qin et al. 2022, Eq. 8-13; ops/bilinear.py) in float32. Each tile of tokens is
// read twice; everything whose size does not grow with the sequence stays in the cache.
//
//     G = [Z W_Q; Z W_K; F_c; F_r]      [W_Q R; W_K R] as rows of R W_Q, R W_K
//     L = X Gᵀ                          A = softmax over tokens of the first 3 p columns, transposed, times X
//     Pᵀ = softmax((R W_K A_k)ᵀ (R W_Q A_q + R b_Q))      Uᵀ = (W_V A_vᵀ + b_V) Pᵀ      Oᵀ = W_O Uᵀ + b_O
//     Y = softmax over p of (X F_rᵀ + f_r) O
//
// Compressed rows are stored transposed, as [d, p], so that vectors run over p.

#include "bilinear.h"

namespace {

// Softmax, in each lane, over `count` vectors at a distance of `step`.
inline void softmax_down(float *x, long step, long count) {
    Vector top = at(x), sum = {};
    for (long j = 1; j < count; j++) top = at(x + j * step) > top ? at(x + j * step) : top;
    for (long j = 0; j < count; j++) sum += at(x + j * step) = exponential(at(x + j * step) - top);
    sum = 1.0f / sum;
    for (long j = 0; j < count; j++) at(x + j * step) *= sum;
}

// Forward pass of one row of the batch, by a team of threads.
struct ForwardPass : ThreadTeam {
    const Maps maps;
    const Row row;
    // turned: [d, 3 p] and rows: [p, d], shared by all threads. own: for each thread its accumulators, maxima, sums and
    // the logits of a tile.
    float *turned, *rows, *own;
    long each, size_of_all;

    ForwardPass(const Call &c, long rank, long size, float *maps_at, float *row_at, float *at)
        : ThreadTeam{c, rank, size}, maps(c, maps_at), row(c, row_at) {
        Memory m(at);
        turned = m.take(3 * c.p * c.dim), rows = m.take(c.p * c.dim);
        each = round_up(3 * c.p * c.dim) + 2 * round_up(3 * c.p) + TOKENS * 4 * c.p;
        own = m.take(each * size), size_of_all = m.size();
    }

    void map(long number) const {
        const long d = c.dim, p = c.p, s = p + c.e;
        share(s, 1, [&](long from, long count) {
            for (long i = from; i < from + count; i++)
                for (long j = 0; j < d; j++)
                    maps.zr[i * d + j] = i < p ? c.z[number * c.z_step + i * d + j] : c.r[(i - p) * d + j] * c.root;
        });
        wait();
        share(d, LANES * VECTORS, [&](long from, long count) {
            multiply(maps.gq + from, d, {maps.zr, d, 1}, c.wq + from, d, s, count, d, false);
            multiply(maps.gk + from, d, {maps.zr, d, 1}, c.wk + from, d, s, count, d, false);
            const float *parts[] = {maps.gq, maps.gk, c.fc, c.fr};
            for (long part = 0; part < 4; part++)
                transpose(maps.g + from * 4 * p + part * p, 4 * p, parts[part] + from, d, p, count);
        });
        wait();
    }

    // Adds a tile of tokens to this thread's compressed rows, and stores the tile's weights W'_r for the expansion.
    void compress(long number, long first, long count, float *own) const {
        const long d = c.dim, p = c.p, width = 4 * p;
        float *top = own + round_up(3 * p * d), *sum = top + round_up(3 * p), *logits = sum + round_up(3 * p);
        const float *x = c.x + (number * c.tokens + first) * d;
        multiply(logits, width, {x, d, 1}, maps.g, width, count, width, d, false);
        for (long i = 0; i < count; i++) {
            float *weights = row.spread + (first + i) * p;
            const float *from = logits + i * width + 3 * p;
            Vector most = Vector{} + LEAST, total = {};
            for (long j = 0; j < p; j += LANES) most = larger(most, at(weights + j) = at(from + j) + at(c.br + j));
            most = fold(most, larger);
            for (long j = 0; j < p; j += LANES) total += at(weights + j) = exponential(at(weights + j) - most);
            total = 1.0f / fold(total, plus);
            for (long j = 0; j < p; j += LANES) at(weights + j) *= total;
        }
        const unsigned char *seen = c.seen ? c.seen + number * c.tokens + first : nullptr;
        for (long j = 0; j < 3 * p; j += LANES) {
            const Vector before = at(top + j);
            Vector most = before;
            for (long i = 0; i < count; i++)
                if (!seen || seen[i]) most = larger(most, at(logits + i * width + j));
            const Vector shrink = exponential(before - most);
            Vector total = at(sum + j) * shrink;
            for (long i = 0; i < count; i++) {
                Vector &weight = at(logits + i * width + j);
                if (c.keep) at(row.logits + (first + i) * 3 * p + j) = weight;
                weight = seen && !seen[i] ? Vector{} : exponential(weight - most);
                total += weight;
            }
            at(top + j) = most, at(sum + j) = total;
            for (long r = 0; r < LANES; r++)
                if (shrink[r] != 1)
                    for (long k = 0; k < d; k += LANES) at(own + (j + r) * d + k) *= shrink[r];
        }
        multiply(own, d, {logits, 1, width}, x, d, 3 * p, d, count, true);
    }

    // Combines the threads' accumulators to A.
    void gather(long number) const {
        const long d = c.dim, p = c.p;
        share(3 * p, LANES, [&](long from, long count) {
            for (long j = from; j < from + count; j++) {
                const long tops = round_up(3 * p * d) + j, sums = tops + round_up(3 * p);
                float most = LEAST, total = 0, part[size];
                for (long t = 0; t < size; t++)
                    if (own[t * each + tops] > most) most = own[t * each + tops];
                for (long t = 0; t < size; t++) {
                    part[t] = exponential(Vector{} + (own[t * each + tops] - most))[0];
                    total += part[t] * own[t * each + sums];
                }
                row.top[j] = most, row.inverse[j] = total == 0 ? 0 : 1 / total;
                float *a = c.a + (number * 3 * p + j) * d;
                for (long k = 0; k < d; k += LANES) {
                    Vector whole_sum = {};
                    for (long t = 0; t < size; t++) whole_sum += part[t] * at(own + t * each + j * d + k);
                    at(a + k) = whole_sum * row.inverse[j];
                }
            }
            transpose(turned + from, 3 * p, c.a + (number * 3 * p + from) * d, d, count, d);
        });
        wait();
    }

    // Computes O, the rows that the expansion mixes.
    void mix() const {
        const long d = c.dim, p = c.p, e = c.e, width = e / c.heads, channels = d / c.heads;
        share(2 * e, e, [&](long from, long count) {
            if (from == 0) {
                multiply(row.q, p, {maps.gq + p * d, d, 1}, turned, 3 * p, e, p, d, false);
                for (long i = 0; i < e; i++) {
                    float bias = 0;
                    for (long j = 0; j < d; j++) bias += maps.zr[(p + i) * d + j] * c.bq[j];
                    for (long j = 0; j < p; j += LANES) at(row.q + i * p + j) += bias;
                }
            }
            if (from + count > e)
                multiply(row.k, p, {maps.gk + p * d, d, 1}, turned + p, 3 * p, e, p, d, false);
        });
        affine(row.v, c.wv, c.bv, turned + 2 * p, 3 * p);
        wait();
        share(c.heads, 1, [&](long from, long count) {
            for (long h = from; h < from + count; h++) {
                float *weights = row.weights + h * p * p;
                multiply(weights, p, {row.k + h * width * p, 1, p}, row.q + h * width * p, p, p, p, width, false);
                for (long i = 0; i < p; i += LANES) softmax_down(weights + i, p, p);
                multiply(row.u + h * channels * p, p, {row.v + h * channels * p, p, 1}, weights, p, channels, p, p,
                         false);
            }
        });
        wait();
        affine(row.o, c.wo, c.bo, row.u, p);
        share(d, LANES, [&](long from, long count) {
            transpose(rows + from, d, row.o + from * p, p, count, p);
        });
        wait();
    }

    // W Bᵀ + b for this thread's share of the d rows of p numbers each.
    void affine(float *to, const float *w, const float *bias, const float *from, long step) const {
        const long d = c.dim, p = c.p;
        share(d, LANES, [&](long first, long count) {
            multiply(to + first * p, p, {w + first * d, d, 1}, from, step, count, p, d, false);
            for (long i = first; i < first + count; i++)
                for (long j = 0; j < p; j += LANES) at(to + i * p + j) += bias[i];
        });
    }

    void run(long number, bool first) const {
        const long d = c.dim, p = c.p;
        if (first || c.z_step) map(number);
        float *mine = own + rank * each;
        for (long i = 0; i < round_up(3 * p * d); i++) mine[i] = 0;
        for (long i = 0; i < round_up(3 * p); i++)
            mine[round_up(3 * p * d) + i] = LEAST, mine[round_up(3 * p * d) + round_up(3 * p) + i] = 0;
        tiles([&](long from, long count) { compress(number, from, count, mine); });
        wait();
        gather(number);
        mix();
        tiles([&](long from, long count) {
            float *y = c.y + (number * c.tokens + from) * d;
            multiply(y, d, {row.spread + from * p, p, 1}, rows, d, count, d, p, false);
        });
        wait();
    }
};

// All threads process the same row if the batch has fewer rows than threads, or if maps are kept for a backward pass.
inline long team_size(const Call &call) { return call.keep || call.batch < call.threads ? call.threads : 1; }

inline long scratch_of_team(const Call &call) {
    const long own = ForwardPass(call, 0, team_size(call), nullptr, nullptr, nullptr).size_of_all;
    return call.keep ? own : own + Maps(call, nullptr).size + Row(call, nullptr).size;
}

} // namespace

extern "C" {

// Size of the scratch memory of all threads together, in floats.
long room(const Call *call) { return scratch_of_team(*call) * (call->threads / team_size(*call)); }

// Size of the memory that is kept for the backward pass, in floats.
long kept(const Call *call) { return row_of(*call, call->batch) - call->kept; }

void forward(const Call *call) {
    const long each = scratch_of_team(*call);
#pragma omp parallel num_threads(call->threads)
    {
        const bool together = team_size(*call) > 1;
        const long rank = omp_get_thread_num(), threads = omp_get_num_threads(), first = together ? 0 : rank;
        for (long number = first; number < call->batch; number += together ? 1 : threads) {
            float *at = call->scratch + first * each, *maps = at, *row = maps + Maps(*call, nullptr).size;
            if (call->keep)
                maps = maps_of(*call, number), row = row_of(*call, number);
            else
                at = row + Row(*call, nullptr).size;
            ForwardPass(*call, together ? rank : 0, together ? threads : 1, maps, row, at).run(number, number == first);
        }
    }
}
}
