/** The entry of the dashboard's page. */

import { Dashboard } from "./dashboard.js";
import { DashboardServer } from "./dashboard_server.js";

const EVERY_MS = 1000;

const dashboard = new Dashboard(new DashboardServer((url, init) => fetch(url, init)));
document.body.append(dashboard.node);
const poll = () => {
  if (document.visibilityState === "visible") {
    void dashboard.poll();
  }
};
poll();
setInterval(poll, EVERY_MS);
document.addEventListener("visibilitychange", poll);
