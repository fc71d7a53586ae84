// Forward attention: one block computes 64 rows of a key head, with an online softmax over tiles of
// keys.
//
//   for a tile of keys that a row of the block sees
//     scores  = queries keys^T         a panel of the head's dimensions at a time
//     weights = 2^(scores - reference), and the accumulated sums are rescaled
//     output += weights values         a panel of the values' columns at a time
//
// Tiles begin at multiples of their size, counted from the sequence's first key. If all rows see
// all keys of a tile, visibility is not tested. kOptions: the score may be capped or biased, and a
// mask may hide keys.
#pragma once

#include "row_output.hpp"
#include "special_values.hpp"

namespace regard::cuda {

// Shared memory: the table of rows, panels of queries, the ring of panels, the tile's scratch
// memory, and bits of a mask.
template <class Tile, bool kOptions>
constexpr int forward_shared_bytes(int head_dim) {
  return RowTable::kBytes + panels_of(head_dim * Tile::Type::kBytes) * kTileRows * kPanelBytes +
         PanelStream<Tile, kOptions>::kRingBytes + Tile::kScratchBytes + PanelStream<Tile, kOptions>::kBitsBytes;
}

// A thread's part of the output: `kPanels` panels of its rows.
template <class Tile, int kPanels>
using Output = float[kPanels][Tile::kRowsOfThread][Tile::kPanelColumns];

// Converts a tile's products to weights, and rescales the accumulated output. Returns which keys
// are visible.
template <class Tile, int kPanels, bool kOptions, bool kTested>
REGARD_DEVICE std::uint32_t weigh_tile(float (&scores)[Tile::kRowsOfThread][Tile::kScores],
                                       const KeyTile& tile, const ScoreRule<Tile, kOptions>& rule,
                                       SoftmaxState (&states)[Tile::kRowsOfThread],
                                       Output<Tile, kPanels>& output) {
  const std::uint32_t seen = rule.template form<kTested>(scores, tile);
#pragma unroll
  for (int r = 0; r < Tile::kRowsOfThread; ++r) {
    const float factor = weigh<Tile, kTested>(scores[r], seen >> (r * Tile::kScores), states[r]);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
      for (int c = 0; c < Tile::kPanelColumns; ++c) output[panel][r][c] *= factor;
  }
  return seen;
}

template <class Tile, int kPanels>
REGARD_DEVICE void store_results(const Arguments& arguments, const Place& place,
                                 const Output<Tile, kPanels>& output, int r,
                                 const SoftmaxState& state, const TileRow& row) {
  const AttentionProblem& problem = arguments.problem;
  const FinishedRow finished = finish_row(state, problem.sinks, row.head);
  const std::int64_t to = offset_of_row(problem, problem.output, place.entry, row.head, row.query);
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
    for (int c = 0; c < Tile::kPanelColumns; c += 2)
      store_pair<typename Tile::Type>(
          arguments, to, panel * (kPanelBytes / Tile::Type::kBytes) + Tile::first_column() + Tile::column_step(c),
          finished.saw_nothing ? 0.0f : output[panel][r][c] * finished.factor,
          finished.saw_nothing ? 0.0f : output[panel][r][c + 1] * finished.factor);
  if (Tile::first_column() == 0) store_lse(problem, place.entry, row.head, row.query, finished.lse);
}

// Stores the state after a chunk's keys, for merge_chunks.
template <class Tile, int kPanels>
REGARD_DEVICE void store_chunk(const Arguments& arguments, const Place& place,
                               const Output<Tile, kPanels>& output,
                               const SoftmaxState& state, int r) {
  const int columns = arguments.problem.value_dim;
  const std::int64_t number = first_state(arguments, place.entry.number, place.kv_head,
                                          place.first_row + Tile::row(r)) + place.chunk;
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
    for (int c = 0; c < Tile::kPanelColumns; ++c) {
      const int column = panel * (kPanelBytes / Tile::Type::kBytes) + Tile::first_column() + Tile::column_step(c);
      if (column < columns) arguments.chunk_outputs[number * columns + column] = output[panel][r][c];
    }
  if (Tile::first_column() != 0) return;
  arguments.chunk_states[2 * number] = state.reference;
  arguments.chunk_states[2 * number + 1] = state.sum;
}

template <class Tile, int kPanels, bool kOptions>
__global__ void __launch_bounds__(kThreads, 2) forward(const __grid_constant__ Arguments arguments) {
  const AttentionProblem& problem = arguments.problem;
  const Place place = locate_block(arguments);
  if (place.rows <= 0) return;

  // Keys that some row sees, and keys that all rows see.
  const Keys first = keys_seen_from(problem, place.entry, place.query(0));
  const Keys last = keys_seen_from(problem, place.entry, place.query(place.rows - 1));
  const Keys shared = {last.begin, first.end};
  Keys seen = {first.begin, last.end};
  if (arguments.chunk_states) {
    const Keys chunk = {clamp(static_cast<std::int64_t>(place.chunk) * kChunkKeys, place.entry.keys),
                        clamp((static_cast<std::int64_t>(place.chunk) + 1) * kChunkKeys, place.entry.keys)};
    seen = {clamp(seen.begin, chunk), clamp(seen.end, chunk)};
  }

  const RowTable rows(dynamic_shared());
  rows.fill(problem, place);
  block_barrier();

  Output<Tile, kPanels> output = {};
  SoftmaxState states[Tile::kRowsOfThread];
  if (seen.begin < seen.end) {
    unsigned char* queries = dynamic_shared() + RowTable::kBytes;
    const int query_panels = panels_of(problem.head_dim * Tile::Type::kBytes);
    const int value_panels = panels_of(problem.value_dim * Tile::Type::kBytes);
    unsigned char* ring = queries + query_panels * kTileRows * kPanelBytes;
    unsigned char* scratch = ring + PanelStream<Tile, kOptions>::kRingBytes;
    load_queries<typename Tile::Type>(queries, arguments, place);
    PanelStream<Tile, kOptions> stream(arguments, place, seen, rows, ring, scratch + Tile::kScratchBytes);
    const ScoreRule<Tile, kOptions> rule(arguments, place.entry, rows);
    const bool has_rows = Tile::first_row() < place.rows;
    const bool has_bias = kOptions && problem.bias.data;
    for (KeyTile tile = stream.tile(); tile.first_key < seen.end; tile = stream.tile()) {
      float scores[Tile::kRowsOfThread][Tile::kScores] = {};
      for (int panel = 0; panel < query_panels; ++panel) {
        const unsigned char* keys = stream.next_panel();
        if (has_rows) Tile::add_products(scores, queries + panel * kTileRows * kPanelBytes, keys);
      }
      const bool is_tested = has_bias || tile.mask_hides || tile.first_key < shared.begin ||
                             tile.first_key > shared.end - Tile::kKeys;
      std::uint32_t tile_seen = 0;
      typename Tile::Weights weights{};
      if (has_rows) {
        tile_seen = is_tested ? weigh_tile<Tile, kPanels, kOptions, true>(scores, tile, rule, states, output)
                              : weigh_tile<Tile, kPanels, kOptions, false>(scores, tile, rule, states, output);
        weights = Tile::pack_weights(scores, scratch);
      }
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        if (panel >= value_panels) continue;
        unsigned char* values = stream.next_panel();
        if (is_tested && has_specials<Tile>(values))
          take_specials<Tile>(output[panel], tile_seen, values, has_rows);
        if (has_rows) Tile::add_values(output[panel], weights, values);
      }
    }
    wait_for_copies<0>();
  }
#pragma unroll
  for (int r = 0; r < Tile::kRowsOfThread; ++r) {
    sum_lanes<Tile>(states[r]);
    const TileRow row = rows.row(Tile::row(r));
    if (Tile::row(r) >= place.rows) continue;
    if (arguments.chunk_states)
      store_chunk<Tile, kPanels>(arguments, place, output, states[r], r);
    else
      store_results<Tile, kPanels>(arguments, place, output, r, states[r], row);
  }
}

}  // namespace regard::cuda
