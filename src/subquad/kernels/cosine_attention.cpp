// Linear attention in float32 with weights q·k cos(a - b), where the angles a and b depend on the positions of query and
// key.
//
//     S = Σ_j k_j [v_j cos b_j | v_j sin b_j]ᵀ        T = Σ_j [cos b_j, sin b_j] k_j          (`state`)
//     y = (A cos a + B sin a) / w, [A | B] = qᵀ S      w = max(q · (T₁ cos a + T₂ sin a), least) (`read`)
//
// A tile of tokens and its intermediate results stay in a core's cache: products of values with cosines and sines are
// never written to memory. The backward functions pass gradients of S and T in the same fields as S and T. Strides of
// operands are those of batch, tokens and heads.

#include <omp.h>

#include "matrices.h"

namespace {

constexpr long TOKENS = 32; // tokens of a tile

struct Call {
    long batch, tokens, heads, features, channels, chunks, threads;
    float least;
    const float *wave;           // [tokens, 2]: cosine and sine of each position's angle
    const float *x, *v, *dy;     // x: keys or queries
    const float *state, *turned; // S: [batch, heads, features, 2 channels], and its transpose; or their gradients
    const float *total;          // T: [batch, heads, 2, features], or its gradient
    float *y, *weight;           // weight: [batch, tokens, heads]
    float *dx, *dv, *of_state, *of_total, *scratch;
    long x_step[3], v_step[3], dy_step[3], y_step[3], dx_step[3], dv_step[3];
    // of_state and of_total: like state and total, with a leading axis of chunks.
};

// A chunk of the tokens of one head of one row of the batch.
struct Part {
    const Call &call;
    long row, head, chunk, features, channels, both;
    float *room;

    Part(const Call &call, long item)
        : call(call), row(item / call.chunks / call.heads), head(item / call.chunks % call.heads),
          chunk(item % call.chunks), features(call.features), channels(call.channels), both(2 * call.channels),
          room(call.scratch + omp_get_thread_num() * TOKENS * 2 * both) {}

    long head_number(long ahead) const { return (ahead * call.batch + row) * call.heads + head; }
    long first(long chunk) const { return chunk * ((call.tokens + TOKENS - 1) / TOKENS) / call.chunks * TOKENS; }

    template <class T> T *at_token(T *data, const long *step, long token) const {
        return data + row * step[0] + token * step[1] + head * step[2];
    }

    // Calls f(first token, number of tokens, their cosines and sines) for each tile.
    template <class F> void each_tile(F f) const {
        const long end = chunk + 1 == call.chunks ? call.tokens : first(chunk + 1);
        for (long token = first(chunk); token < end; token += TOKENS)
            f(token, end - token < TOKENS ? end - token : TOKENS, call.wave + 2 * token);
    }

    // [x cos | x sin] · by
    void spread(float *to, const float *x, float cosine, float sine) const {
        for (long d = 0; d < channels; d += LANES) {
            const Vector numbers = at(x + d);
            at(to + d) = numbers * cosine;
            at(to + channels + d) = numbers * sine;
        }
    }

    // a cos + b sin of [a | b]
    void gather(float *to, const float *x, float cosine, float sine) const {
        for (long d = 0; d < channels; d += LANES) at(to + d) = at(x + d) * cosine + at(x + channels + d) * sine;
    }

    // to₁ += x cos, to₂ += x sin
    void add_to_total(float *to, const float *x, float cosine, float sine) const {
        for (long d = 0; d < features; d += LANES) {
            at(to + d) += at(x + d) * cosine;
            at(to + features + d) += at(x + d) * sine;
        }
    }

    // to += T₁ cos + T₂ sin
    void add_total(float *to, const float *total, float cosine, float sine) const {
        for (long d = 0; d < features; d += LANES) at(to + d) += at(total + d) * cosine + at(total + features + d) * sine;
    }

    float dot(const float *a, const float *b, long size) const {
        Vector sum = {};
        for (long d = 0; d < size; d += LANES) sum += at(a + d) * at(b + d);
        float total = 0;
        for (int l = 0; l < LANES; l++) total += sum[l];
        return total;
    }

    void clear(float *to, long size) const {
        for (long d = 0; d < size; d += LANES) at(to + d) = Vector{};
    }

    void state() const {
        float *sums = call.of_state + head_number(chunk) * features * both;
        float *total = call.of_total + head_number(chunk) * 2 * features;
        clear(total, 2 * features);
        each_tile([&](long token, long count, const float *wave) {
            const float *keys = at_token(call.x, call.x_step, token);
            for (long i = 0; i < count; i++) {
                spread(room + i * both, at_token(call.v, call.v_step, token + i), wave[2 * i], wave[2 * i + 1]);
                add_to_total(total, keys + i * call.x_step[1], wave[2 * i], wave[2 * i + 1]);
            }
            multiply(sums, both, {keys, 1, call.x_step[1]}, room, both, features, both, count, token > first(chunk));
        });
    }

    void read() const {
        const float *sums = call.state + head_number(0) * features * both;
        const float *total = call.total + head_number(0) * 2 * features;
        each_tile([&](long token, long count, const float *wave) {
            const float *queries = at_token(call.x, call.x_step, token);
            multiply(room, both, {queries, call.x_step[1], 1}, sums, both, count, both, features, false);
            for (long i = 0; i < count; i++) {
                const float *query = queries + i * call.x_step[1];
                const float sum = dot(query, total, features) * wave[2 * i] +
                                  dot(query, total + features, features) * wave[2 * i + 1];
                const float weight = sum < call.least ? call.least : sum;
                call.weight[(row * call.tokens + token + i) * call.heads + head] = weight;
                gather(at_token(call.y, call.y_step, token + i), room + i * both, wave[2 * i] / weight,
                       wave[2 * i + 1] / weight);
            }
        });
    }

    // dk = dS [v cos | v sin] + dT₁ cos + dT₂ sin;  dv = cos, sin of kᵀ dS
    void state_backward() const {
        const float *sums = call.state + head_number(0) * features * both;
        const float *turned = call.turned + head_number(0) * features * both;
        const float *total = call.total + head_number(0) * 2 * features;
        float *read = room + TOKENS * both;
        each_tile([&](long token, long count, const float *wave) {
            float *dk = at_token(call.dx, call.dx_step, token);
            const Matrix keys = {at_token(call.x, call.x_step, token), call.x_step[1], 1};
            multiply(read, both, keys, sums, both, count, both, features, false);
            for (long i = 0; i < count; i++) {
                spread(room + i * both, at_token(call.v, call.v_step, token + i), wave[2 * i], wave[2 * i + 1]);
                gather(at_token(call.dv, call.dv_step, token + i), read + i * both, wave[2 * i], wave[2 * i + 1]);
            }
            multiply(dk, call.dx_step[1], {room, both, 1}, turned, features, count, features, both, false);
            for (long i = 0; i < count; i++) add_total(dk + i * call.dx_step[1], total, wave[2 * i], wave[2 * i + 1]);
        });
    }

    // With G = [dy cos | dy sin] / w and g = -dy · y / w, or g = 0 where w = least:
    // dq = S G + g (T₁ cos + T₂ sin);  dS = Σ q Gᵀ;  dT = Σ g [cos, sin] q
    void read_backward() const {
        const float *turned = call.turned + head_number(0) * features * both;
        const float *total = call.total + head_number(0) * 2 * features;
        float *of_state = call.of_state + head_number(chunk) * features * both;
        float *of_total = call.of_total + head_number(chunk) * 2 * features;
        clear(of_total, 2 * features);
        each_tile([&](long token, long count, const float *wave) {
            float *dq = at_token(call.dx, call.dx_step, token);
            const float *queries = at_token(call.x, call.x_step, token);
            float of_weight[TOKENS];
            for (long i = 0; i < count; i++) {
                const float weight = call.weight[(row * call.tokens + token + i) * call.heads + head];
                const float *dy = at_token(call.dy, call.dy_step, token + i);
                const float *y = at_token(call.y, call.y_step, token + i);
                spread(room + i * both, dy, wave[2 * i] / weight, wave[2 * i + 1] / weight);
                of_weight[i] = weight > call.least ? -dot(dy, y, channels) / weight : 0;
                add_to_total(of_total, queries + i * call.x_step[1], of_weight[i] * wave[2 * i],
                             of_weight[i] * wave[2 * i + 1]);
            }
            multiply(dq, call.dx_step[1], {room, both, 1}, turned, features, count, features, both, false);
            for (long i = 0; i < count; i++)
                add_total(dq + i * call.dx_step[1], total, of_weight[i] * wave[2 * i], of_weight[i] * wave[2 * i + 1]);
            multiply(of_state, both, {queries, 1, call.x_step[1]}, room, both, features, both, count,
                     token > first(chunk));
        });
    }
};

template <class F> void each_part(const Call *call, F f) {
#pragma omp parallel for num_threads(call->threads) schedule(static)
    for (long item = 0; item < call->batch * call->heads * call->chunks; item++) f(Part(*call, item));
}

} // namespace

extern "C" {

long tile_size() { return TOKENS; }

// Size of the scratch memory of one thread, in floats.
long room(const Call *call) { return TOKENS * 4 * call->channels; }

void state(const Call *call) {
    each_part(call, [](const Part &part) { part.state(); });
}
void read(const Call *call) {
    each_part(call, [](const Part &part) { part.read(); });
}
void state_backward(const Call *call) {
    each_part(call, [](const Part &part) { part.state_backward(); });
}
void read_backward(const Call *call) {
    each_part(call, [](const Part &part) { part.read_backward(); });
}
}
