// Causal attention over a paged cache, one routine for prefill and decode.
//
// Keys are taken in blocks of 32 and splits of 256, both counted from position 0. Within a
// split the softmax runs online over its blocks; the splits of a query are merged in order.
// What is computed for a query is thus a function of its position alone, whatever the tile,
// batch or thread it ran in.
#include <memory>
#include <vector>

#include "attention_block.h"
#include "pool.h"

namespace antiphon {
namespace {

// Score rows (queries times heads of a group) that a tile aims at.
constexpr int64_t kTileScores = 48;
// Below this many items per thread, the splits of a row become items of their own.
constexpr int64_t kItemsPerThread = 4;

// The scratch of one thread.
struct Workspace {
  explicit Workspace(int64_t rows, int64_t dim)
      : memory(new float[(rows + kBlock) * dim + rows * kBlock + whole_vectors(rows) +
                         state_size(rows, dim)]()) {
    float* next = memory.get();
    queries = next, next += rows * dim;
    keys = next, next += kBlock * dim;
    scores = next, next += rows * kBlock;
    decay = next, next += whole_vectors(rows);
    split = State::at(next, rows);
  }
  static int64_t whole_vectors(int64_t rows) { return (rows + kLanes - 1) / kLanes * kLanes; }
  static int64_t state_size(int64_t rows, int64_t dim) { return rows * (dim + 2); }

  std::unique_ptr<float[]> memory;
  float* queries;
  float* keys;
  float* scores;
  float* decay;
  State split;
};

// One unit of work: splits [begin, end) of a tile under one key head.
struct Item {
  const Tile* tile;
  int64_t kv_head;
  int64_t begin, end;
};

void attend_split(const Attention& call, const Tile& tile, int64_t kv_head, int64_t split,
                  Workspace& work, State& state) {
  const int64_t rows = tile.queries * call.group;
  clear(state, rows, call.dim);
  const int64_t lowest = lowest_key(call, tile.position);
  const int64_t first = lowest / kBlock * kBlock;
  const int64_t begin = split * kSplit > first ? split * kSplit : first;
  const int64_t limit = tile.position + tile.queries;
  const int64_t end = (split + 1) * kSplit < limit ? (split + 1) * kSplit : limit;
  for (int64_t base = begin; base < end; base += kBlock) {
    KeyBlock keys;
    locate(call, tile, kv_head, base, lowest, limit, keys);
    transpose_keys(keys.keys, call.dim, work.keys);
    panel_product(rows, work.queries, call.dim, work.keys, call.dim, work.scores, kBlock, false);
    softmax_block(call, tile, base, work.scores, work.decay, state);
    add_values(rows, work.scores, keys, work.decay, state.values, call.dim);
  }
}

void load_queries(const Attention& call, const Tile& tile, int64_t kv_head, float* to) {
  for (int64_t query = 0; query < tile.queries; ++query)
    for (int64_t g = 0; g < call.group; ++g, to += call.dim) {
      const float* from = call.q + (tile.first_query + query) * call.q_row +
                          (kv_head * call.group + g) * call.q_head;
      for (int64_t d = 0; d < call.dim; d += kLanes) store(to + d, load(from + d) * call.scale);
    }
}

void write_output(const Attention& call, const Tile& tile, int64_t kv_head, const State& total) {
  const int64_t rows = tile.queries * call.group;
  for (int64_t r = 0; r < rows; ++r) {
    const float inverse = 1.0f / total.denominator[r];
    float* to = call.out + ((tile.first_query + r / call.group) * call.heads +
                            kv_head * call.group + r % call.group) * call.dim;
    const float* from = total.values + r * call.dim;
    for (int64_t d = 0; d < call.dim; d += kLanes) store(to + d, load(from + d) * inverse);
  }
}

void merge_rows(const State& total, const State& part, int64_t rows, int64_t dim) {
  for (int64_t r = 0; r < rows; ++r)
    merge(total.maximum[r], total.denominator[r], total.values + r * dim, part.maximum[r],
          part.denominator[r], part.values + r * dim, dim);
}

// Items that cover a whole tile: splits follow each other and the output is written at once.
void run_tiles(const Attention& call, const std::vector<Item>& items, int64_t rows, int team) {
  in_team(team, static_cast<int64_t>(items.size()), 1, [&](Cursor& cursor) {
    Workspace work(rows, call.dim);
    std::unique_ptr<float[]> memory(new float[Workspace::state_size(rows, call.dim)]);
    State total = State::at(memory.get(), rows);
    for (int64_t i, end; cursor.take(i, end);) {
      const Item& item = items[static_cast<size_t>(i)];
      const int64_t used = item.tile->queries * call.group;
      load_queries(call, *item.tile, item.kv_head, work.queries);
      clear(total, used, call.dim);
      for (int64_t split = item.begin; split < item.end; ++split) {
        attend_split(call, *item.tile, item.kv_head, split, work, work.split);
        merge_rows(total, work.split, used, call.dim);
      }
      write_output(call, *item.tile, item.kv_head, total);
    }
  });
}

// Few tiles with long contexts: every split is an item, and a second pass merges them in order.
void run_splits(const Attention& call, const std::vector<Item>& items, int64_t rows, int team) {
  std::vector<Item> splits;
  for (const Item& item : items)
    for (int64_t split = item.begin; split < item.end; ++split)
      splits.push_back({item.tile, item.kv_head, split, split + 1});
  const int64_t size = Workspace::state_size(rows, call.dim);
  std::unique_ptr<float[]> memory(new float[(splits.size() + 1) * static_cast<size_t>(size)]);
  in_team(team, static_cast<int64_t>(splits.size()), 1, [&](Cursor& cursor) {
    Workspace work(rows, call.dim);
    for (int64_t i, end; cursor.take(i, end);) {
      const Item& item = splits[static_cast<size_t>(i)];
      State part = State::at(memory.get() + i * size, rows);
      load_queries(call, *item.tile, item.kv_head, work.queries);
      attend_split(call, *item.tile, item.kv_head, item.begin, work, part);
    }
  });
  int64_t next = 0;
  State total = State::at(memory.get() + static_cast<int64_t>(splits.size()) * size, rows);
  for (const Item& item : items) {
    const int64_t used = item.tile->queries * call.group;
    clear(total, used, call.dim);
    for (int64_t split = item.begin; split < item.end; ++split, ++next)
      merge_rows(total, State::at(memory.get() + next * size, rows), used, call.dim);
    write_output(call, *item.tile, item.kv_head, total);
  }
}

// 0, or what is wrong with the batch: 2 for a context, 3 for a block outside the cache.
int check_batch(const int32_t* query_start, const int32_t* context_len, int64_t batch,
                const Attention& call, int64_t cache_slots) {
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t queries = query_start[b + 1] - query_start[b];
    const int64_t context = context_len[b];
    if (queries < 0 || context < queries || context > call.table_width * call.block_tokens)
      return 2;
    const int32_t* table = call.block_table + b * call.table_width;
    for (int64_t block = 0; block * call.block_tokens < context; ++block)
      if (table[block] < 0 || (table[block] + 1) * call.block_tokens > cache_slots) return 3;
  }
  return 0;
}

}  // namespace
}  // namespace antiphon

using namespace antiphon;

ANTIPHON_EXPORT int antiphon_paged_attention(const Attention* arguments, const int32_t* query_start,
                                        const int32_t* context_len, int64_t batch,
                                        int64_t cache_slots, int threads) {
  const Attention& call = *arguments;
  const int fault = check_batch(query_start, context_len, batch, call, cache_slots);
  if (fault != 0) return fault;
  const int64_t tile_queries = call.group < kTileScores ? kTileScores / call.group : 1;
  std::vector<Tile> tiles;
  int64_t widest = 1;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t queries = query_start[b + 1] - query_start[b];
    for (int64_t done = 0; done < queries; done += tile_queries) {
      const int64_t count = queries - done < tile_queries ? queries - done : tile_queries;
      tiles.push_back({b, query_start[b] + done, count, context_len[b] - queries + done});
      widest = count > widest ? count : widest;
    }
  }
  std::vector<Item> items;
  int64_t most_splits = 0;
  // Later tiles see more keys: starting with them leaves the short ones to fill the gaps.
  for (auto tile = tiles.rbegin(); tile != tiles.rend(); ++tile)
    for (int64_t head = 0; head < call.kv_heads; ++head) {
      const int64_t begin = lowest_key(call, tile->position) / kSplit;
      const int64_t end = (tile->position + tile->queries + kSplit - 1) / kSplit;
      items.push_back({&*tile, head, begin, end});
      most_splits = end - begin > most_splits ? end - begin : most_splits;
    }
  const int64_t rows = widest * call.group;
  const bool few = static_cast<int64_t>(items.size()) < kItemsPerThread * threads;
  const int team = most_splits * static_cast<int64_t>(items.size()) < 2 ? 1 : threads;
  if (few && most_splits > 1)
    run_splits(call, items, rows, team);
  else
    run_tiles(call, items, rows, team);
  return 0;
}
