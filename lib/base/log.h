// Log lines and the progress line, both on stderr; stdout carries results only.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "lib/base/choices.h"

namespace diptych {

enum class LogLevel { quiet, error, warning, info, debug };

// Writes "[INFO ] text" lines. Passed by reference, never global. Several threads may write.
class Log {
 public:
  explicit Log(LogLevel level = LogLevel::info) : level_(level) {}
  LogLevel level() const { return level_; }
  void set_level(LogLevel level) { level_ = level; }
  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    write(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) {
    write(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) {
    write(LogLevel::debug, fmt::format(format, std::forward<Args>(args)...));
  }
  // "at 0.45s: <what>", at level debug: when the process has come so far, counted from its start to
  // a hundredth of a second.
  void mark(std::string_view what);
  // The same text is written once per Log.
  void warning_once(const std::string& text) { write_once(LogLevel::warning, text); }
  void info_once(const std::string& text) { write_once(LogLevel::info, text); }
  void write(LogLevel level, std::string_view text);
  void set_active_line(bool active) { active_line_ = active; }  // a progress bar is on the line

 private:
  void write_once(LogLevel level, const std::string& text);
  LogLevel level_;
  std::atomic<bool> active_line_ = false;
  std::mutex mutex_;  // of said_ and of one line at a time
  std::set<std::string, std::less<>> said_;
};

// One stage after the other (loading, prefill, denoise, decode, encode): a bar that fits the
// terminal (progress_line.h). The machine styles write a record to stderr at both ends of a stage
// and for each update that changes something.
class Progress {
 public:
  Progress(Log& log, ProgressStyle style);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void begin(std::string_view stage, std::int64_t total);
  void update(std::int64_t done);
  void end();  // ends the stage; the bar is removed
  // Takes the bar off the terminal, for what goes to stdout meanwhile; the next update draws it.
  void clear();
  // Beside the stages: how many of the items of a batch are through. The bar shows it in front, the
  // machine styles write a record of the stage "items".
  void set_items(std::int64_t done, std::int64_t total);

 private:
  void draw(bool last);
  void emit_record(std::string_view stage, std::int64_t done, std::int64_t total, double seconds,
                   bool last) const;
  Log& log_;
  ProgressStyle style_;
  std::string stage_;
  std::int64_t total_ = 0, done_ = 0;
  double started_ = 0, drawn_ = 0;  // seconds
  bool shown_ = false;              // the bar is on the terminal
  std::int64_t items_total_ = 0, items_done_ = 0;
  double items_started_ = 0;
};

double steady_seconds();  // monotonic clock

}  // namespace diptych
