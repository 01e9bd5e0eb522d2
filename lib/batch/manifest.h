// What became of each item of a list: one JSON object a line, appended as they are done, so that a
// run that was killed at any moment can go on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace diptych {

struct ManifestRecord {
  struct File {
    std::string name;  // below the output folder
    std::string sha256;
    bool operator==(const File&) const = default;
  };
  std::string id;
  std::size_t number = 0;  // place in the list, from 0
  bool ok = false;
  double seconds = 0;
  std::uint64_t seed = 0;
  // What computed it: device, dtype, quantization, kernels, attention; those that are recorded.
  std::map<std::string, std::string> made_by;
  std::vector<File> files;  // of a failed item: the pictures before the failure
  std::optional<std::string> prompt, prompt_given;  // that was painted, rewritten from the other
  std::optional<std::string> text;                  // of an answer
  std::optional<std::string> plan;                  // of think mode, the last one
  std::string finish_reason;                        // of the text or the plan, "" = there is none
  std::string error;                                // of a failed item
  std::string request;                              // request_hash() of what was run

  std::string line() const;  // without its end
  // Nothing for a line that is no such record.
  static std::optional<ManifestRecord> parse(const std::string& line);
};

// The manifest of one process, which alone may write it, or of several that were started together
// (advisory locks). Of several records with one id the last counts.
class Manifest {
 public:
  // Creates the file where it is missing. Throws InputError where another process has it, and where
  // it has content and `resume` is false, unless every item failed and left no file: such a run
  // begins anew, and the first write replaces its lines. A last line without its end, which a
  // killed process left, counts as none, and is cut off by the first write.
  // `others`: the ids of items that other processes record in the same file meanwhile; null: this
  // process is alone. With others, their records are no content, lines that count no more stay
  // until the end, and a file system without locks is refused.
  Manifest(std::filesystem::path file, bool resume, const std::set<std::string>* others = nullptr);
  ~Manifest();  // a manifest without a record is removed
  Manifest(const Manifest&) = delete;
  Manifest& operator=(const Manifest&) = delete;

  const ManifestRecord* find(const std::string& id) const;  // null where there is none
  const std::map<std::string, ManifestRecord>& records() const { return records_; }
  std::size_t unreadable_lines() const { return unreadable_; }
  // Throws WriteError where the file, or its folder, was moved or removed since it was opened: what
  // is written now would be lost, or be in another place than the rest.
  void require_in_place() const;
  // All in one write, on disk when it returns. Throws WriteError, as require_in_place(), too.
  void append(std::span<const ManifestRecord> records);
  // The end of a complete run: one record for each of these ids, in their order. Of several
  // processes the last one does it, if all ids have records by then. Nothing may be appended
  // afterwards. Throws as append().
  void finish(const std::vector<std::string>& ids);

 private:
  void open_locked();
  void close_it();  // an empty one goes away
  void read(bool resume, const std::set<std::string>* others);
  void read_lines();
  bool has_results(const std::set<std::string>* others) const;
  bool is_last();  // of its processes; the others are done, or gone
  void cut_torn_line();
  void write_lines(std::string_view text);
  std::filesystem::path file_;
  int descriptor_ = -1;
  bool shared_;                    // by several processes
  bool numbered_steadily_ = true;  // by its file system
  std::map<std::string, ManifestRecord> records_;
  std::vector<std::string> order_;  // of the ids in the file
  std::size_t unreadable_ = 0;
  std::optional<std::size_t> torn_at_;  // where lines that count as none begin
};

inline constexpr const char* kManifestName = "manifest.jsonl";  // of a run without shards

// What the manifest of a finished or stopped run holds, in the order of the list; nothing where
// there is none. A last line without its end counts as none. Throws InputError "<file>:<line>: ..."
// for another line that is no record, and for a file that cannot be read.
std::optional<std::vector<ManifestRecord>> read_manifest(const std::filesystem::path& file);

// Files of another division of the same list in this folder, such as manifest-0-of-4.jsonl beside
// "manifest.jsonl"; a run must not mix them.
std::vector<std::string> manifests_of_other_shards(const std::filesystem::path& folder,
                                                   std::size_t count);

}  // namespace diptych
