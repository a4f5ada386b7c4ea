// Starts the page.

import { setUpChat } from "./chat.js";
import { setUpSpeak } from "./speak.js";
import { setUpStatus } from "./status.js";
import { setUpTabs } from "./tabs.js";
import { setUpTranscribe } from "./transcribe.js";
import { setUpVoice } from "./voice/panel.js";

setUpTabs();
setUpStatus();
setUpVoice();
setUpChat();
setUpSpeak();
setUpTranscribe();
