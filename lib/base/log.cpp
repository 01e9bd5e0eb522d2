#include "lib/base/log.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include <unistd.h>

#include "lib/base/messages.h"
#include "lib/base/progress_line.h"

namespace diptych {
namespace {

constexpr const char kClearLine[] = "\r\x1b[2K";

// A closed or full stderr must not end a run: what cannot be said is not said.
template <typename... Args>
void emit(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace

double steady_seconds() {
  using Seconds = std::chrono::duration<double>;
  return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Log::write(LogLevel level, std::string_view text) {
  if (level > level_) return;
  const std::lock_guard lock(mutex_);
  static constexpr std::array<std::string_view, 5> kTags = {"", "ERROR", "WARN ", "INFO ", "DEBUG"};
  if (active_line_) emit(kClearLine);
  emit("[{}] {}\n", kTags[static_cast<std::size_t>(level)], printable(text));
  std::fflush(stderr);
}

namespace {

// Since the process began, as the system counts it (proc(5), field 22 of stat): also of the program
// that became this one. 0 where the system does not tell.
double process_seconds() {
  std::ifstream file("/proc/self/stat");
  std::string stat;
  std::getline(file, stat);
  // The second field is a name in parentheses, which may hold anything.
  std::istringstream fields(stat.substr(std::min(stat.rfind(')') + 1, stat.size())));
  std::string field;
  for (int number = 3; number < 22; ++number) fields >> field;
  double ticks = 0;
  if (!(fields >> ticks)) return 0;
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
         ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

void Log::mark(std::string_view what) {
  if (level_ < LogLevel::debug) return;
  debug("at {:.2f}s: {}", process_seconds(), what);
}

void Log::write_once(LogLevel level, const std::string& text) {
  const auto is_new = [&] {
    const std::lock_guard lock(mutex_);
    return said_.insert(text).second;
  };
  if (is_new()) write(level, text);
}

namespace {

ProgressStyle resolve(ProgressStyle style, LogLevel level) {
  if (style != ProgressStyle::automatic) return style;
  // A dumb terminal shows the codes that clear a line.
  const char* const term = std::getenv("TERM");
  const bool terminal =
      isatty(STDERR_FILENO) != 0 && (term == nullptr || std::string_view(term) != "dumb");
  // `automatic` afterwards means: draw the bar.
  return terminal && level >= LogLevel::info ? ProgressStyle::automatic : ProgressStyle::none;
}

}  // namespace

Progress::Progress(Log& log, ProgressStyle style)
    : log_(log), style_(resolve(style, log.level())) {}

Progress::~Progress() {
  end();
}

void Progress::begin(std::string_view stage, std::int64_t total) {
  end();
  stage_ = stage;
  total_ = total;
  done_ = 0;
  started_ = drawn_ = steady_seconds();
  draw(false);
}

void Progress::update(std::int64_t done) {
  if (stage_.empty() || done == done_) return;
  done_ = done;
  const double now = steady_seconds();
  const bool bar = style_ == ProgressStyle::automatic;
  if (bar && done_ < total_ && now - drawn_ < 0.1) return;  // a bar needs ten frames a second
  drawn_ = now;
  draw(false);
}

void Progress::end() {
  if (stage_.empty()) return;
  draw(true);
  clear();
  stage_.clear();
}

void Progress::clear() {
  if (!shown_) return;
  emit(kClearLine);
  std::fflush(stderr);
  shown_ = false;
  log_.set_active_line(false);
}

void Progress::set_items(std::int64_t done, std::int64_t total) {
  const double now = steady_seconds();
  if (items_total_ == 0) items_started_ = now;
  if (done == items_done_ && total == items_total_) return;
  items_done_ = done;
  items_total_ = total;
  emit_record("items", done, total, now - items_started_, done == total);
}

void Progress::emit_record(std::string_view stage, std::int64_t done, std::int64_t total,
                           double seconds, bool last) const {
  const char* state = last ? "end" : "continue";
  if (style_ == ProgressStyle::kv) {
    emit("stage={}\ndone={}\ntotal={}\nseconds={:.3f}\nprogress={}\n", stage, done, total, seconds,
         state);
  } else if (style_ == ProgressStyle::jsonl) {
    emit("{{\"stage\":\"{}\",\"done\":{},\"total\":{},\"seconds\":{:.3f},\"progress\":\"{}\"}}\n",
         stage, done, total, seconds, state);
  }
}

void Progress::draw(bool last) {
  const double seconds = steady_seconds() - started_;
  emit_record(stage_, done_, total_, seconds, last);
  if (style_ == ProgressStyle::automatic && !last) {
    shown_ = true;
    log_.set_active_line(true);
    const ProgressState state{stage_, done_, total_, seconds, items_done_, items_total_};
    emit("{}{}", kClearLine, progress_line(state, terminal_columns(STDERR_FILENO)));
  }
  std::fflush(stderr);
}

}  // namespace diptych
