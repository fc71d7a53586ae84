#include "cgroup.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string_view>
#include <vector>

#include "text_file.hpp"

namespace regard {
namespace {

constexpr double kNoQuota = std::numeric_limits<double>::infinity();

bool has_cpu_controller(const std::string& controllers) {
  const std::vector<std::string> names = split(controllers, ',');
  return std::find(names.begin(), names.end(), "cpu") != names.end();
}

// mountinfo escapes spaces, tabs, newlines and backslashes in a path as \ooo.
std::string unescaped(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_escape = text[i] == '\\' && i + 3 < text.size() &&
                           text.find_first_not_of("01234567", i + 1) >= i + 4;
    if (!is_escape) {
      plain += text[i];
      continue;
    }
    plain += static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8));
    i += 3;
  }
  return plain;
}

// "50000 100000" in one file, or in two. A group without a limit has "max" or -1 for the first.
double quota_of_group(const std::string& folder, bool is_unified) {
  const std::string text = is_unified ? read_text(folder + "/cpu.max")
                                      : read_text(folder + "/cpu.cfs_quota_us") + ' ' +
                                            read_text(folder + "/cpu.cfs_period_us");
  std::string_view numbers = text;
  const auto limit = static_cast<double>(take_number(numbers));
  const auto period = static_cast<double>(take_number(numbers));
  return limit > 0 && period > 0 ? limit / period : kNoQuota;
}

// The quota of the group and of all groups that contain it, up to the group at the mount point.
double quota_of_groups(const std::string& mount_point, std::string group, bool is_unified) {
  double least = kNoQuota;
  while (true) {
    least = std::min(least, quota_of_group(mount_point + group, is_unified));
    const std::size_t slash = group.rfind('/');
    if (slash == std::string::npos) return least;
    group.resize(slash);
  }
}

// The path of a group below a mount point that shows the hierarchy from `mounted` on; empty for the
// mount point itself, and for a group outside the mounted hierarchy.
std::string below(const std::string& mounted, const std::string& group) {
  const std::string prefix = mounted == "/" ? "" : mounted;
  const bool is_inside = group.compare(0, prefix.size(), prefix) == 0 &&
                         (group.size() == prefix.size() || group[prefix.size()] == '/');
  if (!is_inside || group.find("/..") != std::string::npos) return "";
  const std::string rest = group.substr(prefix.size());
  return rest == "/" ? "" : rest;
}

// The process's groups: in the unified hierarchy, and in the version 1 hierarchy of the controller
// `cpu`.
struct Groups {
  std::string unified = "/";
  std::string of_cpu = "/";

  explicit Groups(const std::string& root) {
    for (const std::string& line : split(read_text(root + "/proc/self/cgroup"), '\n')) {
      // hierarchy:controllers:path
      const std::size_t first = line.find(':');
      const std::size_t second = line.find(':', first == std::string::npos ? first : first + 1);
      if (second == std::string::npos) continue;
      const std::string controllers = line.substr(first + 1, second - first - 1);
      if (line.compare(0, first, "0") == 0 && controllers.empty())
        unified = line.substr(second + 1);
      else if (has_cpu_controller(controllers))
        of_cpu = line.substr(second + 1);
    }
  }
};

}  // namespace

double cgroup_quota(const std::string& root) {
  const Groups groups(root);
  double least = kNoQuota;
  bool has_mounts = false;
  for (const std::string& line : split(read_text(root + "/proc/self/mountinfo"), '\n')) {
    // id parent major:minor root mount-point options optional... - type source super-options
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    const std::vector<std::string> before = split(line.substr(0, dash), ' ');
    const std::vector<std::string> after = split(line.substr(dash + 3), ' ');
    if (before.size() < 5 || after.size() < 3) continue;
    const bool is_unified = after[0] == "cgroup2";
    if (!is_unified && !(after[0] == "cgroup" && has_cpu_controller(after[2]))) continue;
    has_mounts = true;
    const std::string& group = is_unified ? groups.unified : groups.of_cpu;
    least = std::min(least, quota_of_groups(root + unescaped(before[4]),
                                            below(unescaped(before[3]), group), is_unified));
  }
  if (has_mounts) return least;
  // /proc is missing: use the usual mount points.
  return std::min(quota_of_group(root + "/sys/fs/cgroup", true),
                  quota_of_group(root + "/sys/fs/cgroup/cpu", false));
}

}  // namespace regard
