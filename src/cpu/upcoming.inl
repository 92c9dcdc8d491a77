// Rows of the caller's tensors that will be read or written soon. They stand far apart (one head's
// rows of a (batch, seqlen, head, dim) tensor are a whole token apart), which no hardware
// prefetcher follows, so the tiles bring them near, line by line, while they compute.
namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

constexpr int kLine = 64;  // bytes

// Prefetches kCount lines a call: the same line of consecutive rows.
template <int kCount>
struct Touch {
  const char* at;
  int64_t step;

  TILEWISE_HD void operator()() {
    TILEWISE_UNROLL for (int i = 0; i < kCount; ++i) {
      Simd::prefetch(at);
      at += step;
    }
  }
};

// Besides, two lines a call of each of two arrays.
template <int kCount>
struct TouchBesides {
  Touch<kCount> rows;
  const void* first;
  const void* second;

  TILEWISE_HD void operator()() {
    rows();
    TILEWISE_UNROLL for (int i = 0; i < 2; ++i) {
      Simd::prefetch(first);
      Simd::prefetch(second);
      first = static_cast<const char*>(first) + kLine;
      second = static_cast<const char*>(second) + kLine;
    }
  }
};

class Upcoming {
 public:
  void clear() { row_ = line_ = count_ = now_ = 0; }

  // `rows` rows of `bytes` bytes, `stride` bytes apart.
  void add(const void* first, int64_t stride, int64_t rows, int64_t bytes) {
    const int64_t lines = (bytes + kLine - 1) / kLine;
    if (rows > 0) tensors_[count_++] = {static_cast<const char*>(first), stride, rows, lines};
  }

  // The next lines, for that many calls. More than there are rows touch some again or the lines
  // behind them.
  template <int kCount>
  TILEWISE_HD Touch<kCount> next(int calls) {
    if (now_ == count_) return {reinterpret_cast<const char*>(this), 0};
    const int64_t count = kCount * calls;
    const Rows& r = tensors_[now_];
    const int64_t last = r.rows > count ? r.rows - count : 0;
    const char* at = r.first + (row_ < last ? row_ : last) * r.stride + line_ * kLine;
    row_ += count;
    if (row_ >= r.rows) row_ = 0, ++line_;
    if (line_ == r.lines) line_ = 0, ++now_;
    return {at, r.stride};
  }

 private:
  struct Rows {
    const char* first;
    int64_t stride, rows, lines;
  };
  Rows tensors_[4];
  int64_t row_ = 0, line_ = 0;
  int count_ = 0, now_ = 0;
};

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
